// Package logging sets up the logger of the program.
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
	// Verbosity is 0 or more. Nothing is logged above 10.
	Verbosity int
}

// Add adds the flags to those of a command.
func (f *Flags) Add(flags *pflag.FlagSet) {
	flags.StringVar(&f.Format, "logging-format", "text", "log format: text or json")
	flags.IntVarP(&f.Verbosity, "v", "v", 0, "log level verbosity, 0 or more; 1 adds what controllers wait for, and driver calls")
}

// SetUp returns the logger, and makes all libraries use it. Invalid flags are an args.UsageError.
func (f *Flags) SetUp(out io.Writer) (logr.Logger, error) {
	if f.Verbosity < 0 {
		return logr.Logger{}, args.Wrongf("--v: must not be negative")
	}
	out = terminal.NewText(out) // JSON does not escape all that a terminal obeys
	options := &slog.HandlerOptions{Level: slog.Level(-f.Verbosity), ReplaceAttr: withoutBodies}
	var handler slog.Handler
	switch f.Format {
	case "text":
		handler = slog.NewTextHandler(out, options)
	case "json":
		handler = slog.NewJSONHandler(out, options)
	default:
		return logr.Logger{}, args.Wrongf("--logging-format: %q is neither text nor json", f.Format)
	}
	log := logr.FromSlogHandler(filter{handler})
	ctrl.SetLogger(log)
	klog.SetLogger(log)
	return log, nil
}

// withoutBodies leaves out what client-go logs of requests and answers from verbosity 8 on: Secrets are among them.
func withoutBodies(_ []string, attr slog.Attr) slog.Attr {
	if attr.Key == "body" {
		attr.Value = slog.StringValue("left out: it may have secrets")
	}
	return attr
}

// filter has errors that are none not be errors: whenever a manager stops, controller-runtime logs the leadership that it has
// released as lost, which is dropped; and what was under way says that it was cancelled, as client-go of the renewal of a
// lease, which becomes an information.
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

// errorOf returns the error that a record is about; nil if it is about none.
func errorOf(record slog.Record) (err error) {
	record.Attrs(func(attr slog.Attr) bool {
		err, _ = attr.Value.Any().(error)
		return err == nil
	})
	return err
}

func (h filter) WithAttrs(attrs []slog.Attr) slog.Handler { return filter{h.Handler.WithAttrs(attrs)} }

func (h filter) WithGroup(name string) slog.Handler { return filter{h.Handler.WithGroup(name)} }
