package lazylog

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/go-logr/logr"
)

// counting counts how often values are formatted.
type counting struct {
	slog.Handler
	formatted *int
}

func (c counting) WithAttrs(attrs []slog.Attr) slog.Handler {
	*c.formatted++
	return counting{c.Handler.WithAttrs(attrs), c.formatted}
}

func TestNew(t *testing.T) {
	var out bytes.Buffer
	formatted := 0
	log := New(logr.FromSlogHandler(counting{slog.NewTextHandler(&out, nil), &formatted}))
	parent := log.WithName("parent").WithValues("a", 1)
	one, other := parent.WithValues("b", 2), parent.WithValues("c", 3)
	one.V(1).Info("too much")
	if formatted != 0 || out.Len() != 0 {
		t.Errorf("values were formatted %d times for dropped lines: %s", formatted, &out)
	}
	one.Info("done", "d", 4)
	other.WithName("child").Error(errors.New("broken"), "failed")
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	for i, want := range []string{"msg=done a=1 b=2 logger=parent d=4", "msg=failed a=1 c=3 logger=parent/child err=broken"} {
		if i >= len(lines) || !strings.HasSuffix(lines[i], want) {
			t.Errorf("line %d of %q, want %q", i, lines, want)
		}
	}
	New(logr.Discard()).WithValues("a", 1).Info("nothing")
}
