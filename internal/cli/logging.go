package cli

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
)

// logging holds the flags that say what is logged, and how.
type logging struct {
	format    string
	verbosity int
}

func (l *logging) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&l.format, "logging-format", "text", "how log lines are written: text or json")
	flags.IntVarP(&l.verbosity, "v", "v", 0, "how much is logged: 0 what happens, 1 also what is waited for and calls to the driver, up to 10")
}

// setUp makes the one logger, and has all libraries use it.
func (l *logging) setUp(out io.Writer) (logr.Logger, error) {
	if l.verbosity < 0 || l.verbosity > 10 {
		return logr.Logger{}, fmt.Errorf("--v: %d is not between 0 and 10", l.verbosity)
	}
	options := &slog.HandlerOptions{Level: slog.Level(-l.verbosity)}
	var handler slog.Handler
	switch l.format {
	case "text":
		handler = slog.NewTextHandler(out, options)
	case "json":
		handler = slog.NewJSONHandler(out, options)
	default:
		return logr.Logger{}, fmt.Errorf("--logging-format: %q is neither text nor json", l.format)
	}
	log := logr.FromSlogHandler(endQuietly{handler})
	ctrl.SetLogger(log)
	klog.SetLogger(log)
	return log, nil
}

// endQuietly leaves out what controller-runtime reports as an error at every orderly end:
// that leadership, which it gave away, is lost.
type endQuietly struct{ slog.Handler }

func (h endQuietly) Handle(ctx context.Context, record slog.Record) error {
	if record.Message == "error received after stop sequence was engaged" && mentions(record, "leader election lost") {
		return nil
	}
	return h.Handler.Handle(ctx, record)
}

func mentions(record slog.Record, text string) bool {
	found := false
	record.Attrs(func(attr slog.Attr) bool {
		found = found || attr.Value.String() == text
		return !found
	})
	return found
}

func (h endQuietly) WithAttrs(attrs []slog.Attr) slog.Handler {
	return endQuietly{h.Handler.WithAttrs(attrs)}
}

func (h endQuietly) WithGroup(name string) slog.Handler {
	return endQuietly{h.Handler.WithGroup(name)}
}
