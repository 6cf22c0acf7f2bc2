// Package logging configures the logger of the program.
package logging

import (
	"context"
	"errors"
	"io"
	"log/slog"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/terminal"
)

// Flags configure the logger.
type Flags struct {
	// Format is "text" or "json".
	Format string
	// Verbosity is 0 or more. Levels above 10 are never logged.
	Verbosity int
}

// Add adds the flags to those of a command.
func (f *Flags) Add(flags *pflag.FlagSet) {
	flags.StringVar(&f.Format, "logging-format", "text", "log format: text or json")
	flags.IntVarP(&f.Verbosity, "v", "v", 0, "log verbosity, 0 or more; 1 adds what controllers wait for, and driver calls")
}

// SetUp returns the logger and makes all libraries use it. Invalid flags are an args.UsageError.
func (f *Flags) SetUp(out io.Writer) (logr.Logger, error) {
	if f.Verbosity < 0 {
		return logr.Logger{}, args.Wrongf("--v: must not be negative")
	}
	out = terminal.NewText(out) // JSON does not escape all control sequences
	options := &slog.HandlerOptions{Level: slog.Level(-f.Verbosity), ReplaceAttr: withoutBodies}
	var handler slog.Handler
	switch f.Format {
	case "text":
		handler = slog.NewTextHandler(out, options)
	case "json":
		handler = slog.NewJSONHandler(out, options)
	default:
		return logr.Logger{}, args.Wrongf("--logging-format: unknown format %q; expected text or json", f.Format)
	}
	log := logr.FromSlogHandler(filter{handler})
	ctrl.SetLogger(log)
	klog.SetLogger(log)
	return log, nil
}

// withoutBodies removes request and response bodies, which client-go logs at verbosity 8 and above, since they
// include Secrets.
func withoutBodies(_ []string, attr slog.Attr) slog.Attr {
	if attr.Key == "body" {
		attr.Value = slog.StringValue("omitted: may contain secrets")
	}
	return attr
}

// filter downgrades errors that are not errors. When a manager stops, controller-runtime logs the leadership
// that it has released as lost; this is dropped. Canceled operations, such as client-go's renewal of a lease,
// become informational messages.
type filter struct{ slog.Handler }

func (h filter) Handle(ctx context.Context, record slog.Record) error {
	err := errorOf(record)
	switch {
	case err == nil:
	case record.Message == "error received after stop sequence was engaged" && err.Error() == "leader election lost":
		return nil
	case errors.Is(err, context.Canceled):
		record.Level = min(record.Level, slog.LevelInfo)
	}
	return h.Handler.Handle(ctx, record)
}

// errorOf returns the error of a record, or nil.
func errorOf(record slog.Record) (err error) {
	record.Attrs(func(attr slog.Attr) bool {
		err, _ = attr.Value.Any().(error)
		return err == nil
	})
	return err
}

func (h filter) WithAttrs(attrs []slog.Attr) slog.Handler { return filter{h.Handler.WithAttrs(attrs)} }

func (h filter) WithGroup(name string) slog.Handler { return filter{h.Handler.WithGroup(name)} }
