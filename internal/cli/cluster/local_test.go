package cluster

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/millwright-dev/millwright/internal/cli/folder"
)

// TestHintsFitTheDriver: what is said to be applied is what the driver can make.
func TestHintsFitTheDriver(t *testing.T) {
	for driver, want := range map[string]string{folder.DriverVM: "apply -f examples/\n", folder.DriverSim: "apply -f examples/sim/\n"} {
		t.Run(driver, func(t *testing.T) {
			mode := &local{upFlags: &upFlags{}}
			mode.Driver.Name = driver
			var out bytes.Buffer
			mode.howToGoOn(&out, "kubectl", "kubeconfig")
			if !strings.Contains(out.String(), want) {
				t.Errorf("says:\n%s", &out)
			}
		})
	}
}

// TestNamesOfHosts: those of hosts that are not there yet are reserved, too, and no others.
func TestNamesOfHosts(t *testing.T) {
	for name, want := range map[string]bool{
		"host-1": true, "host-100": true, "host-": false, "host-a": false, "host-1a": false, "ghost-1": false, "host": false, "": false,
	} {
		if got := isHost(name); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
}

// TestAPartThatDoesNotStart: its error is that of the command, which ends what has started; it is none
// after the user has ended the command.
func TestAPartThatDoesNotStart(t *testing.T) {
	broken, ended := errors.New("the port is taken"), make(chan struct{})
	first := func(ctx context.Context, group *errgroup.Group) error {
		group.Go(func() error {
			<-ctx.Done()
			close(ended)
			return nil
		})
		return nil
	}
	parts := []part{first, func(context.Context, *errgroup.Group) error { return broken }}
	unused := func(context.Context) error {
		t.Error("it is used, though a part has not started")
		return nil
	}
	if err := runParts(t.Context(), parts, unused); !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
	<-ended
	over, end := context.WithCancel(t.Context())
	end()
	if err := runParts(over, parts[1:], unused); err != nil {
		t.Errorf("ended by the user, it returns %v", err)
	}
}
