package standalone

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/registry"
)

// closing counts the calls of Close.
type closing struct {
	driver.Driver
	closed *int
}

func (c closing) Close() error {
	*c.closed++
	return errors.New("the door is stuck")
}

// TestDrivers_AreClosed checks that each opened driver is closed, and that errors are reported.
func TestDrivers_AreClosed(t *testing.T) {
	var closed int
	flags := &Flags{Name: "mine", Kinds: registry.Kinds{{Name: "mine", Open: func(context.Context, registry.Environment) (driver.Driver, error) {
		return closing{closed: &closed}, nil
	}}}}
	var out bytes.Buffer
	opened, err := flags.Open(t.Context(), &out)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := opened.Again(); err != nil {
		t.Fatal(err)
	}
	if closed != 0 {
		t.Error("it is closed while it is open")
	}
	opened.Close()
	if closed != 2 || strings.Count(out.String(), "the door is stuck") != 2 {
		t.Errorf("%d of 2 are closed; output %q", closed, out.String())
	}
}
