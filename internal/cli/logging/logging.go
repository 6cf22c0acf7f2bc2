// Package logging configures the logger of the program.
package logging

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/terminal"
)

// Flags configure the logger.
type Flags struct {
	// Format is "text", "json" or "klog".
	Format string
	// Verbosity is 0 or more. Levels above 10 are never logged.
	Verbosity int
	// TextIsKlog makes "text" another name of "klog", as in MCM's commands.
	TextIsKlog bool
}

// Add adds the flags to those of a command.
func (f *Flags) Add(flags *pflag.FlagSet) {
	usage := "log format: text, json or klog"
	if f.TextIsKlog {
		usage = "log format: text, which is klog's format, or json"
	}
	flags.StringVar(&f.Format, "logging-format", "text", usage)
	flags.IntVarP(&f.Verbosity, "v", "v", 0, "log verbosity, 0 or more; 1 adds what controllers wait for, and driver calls")
	args.Section(flags, "logging")
}

// SetUp returns the logger and makes all libraries use it. Invalid flags are an args.UsageError.
func (f *Flags) SetUp(out io.Writer) (logr.Logger, error) {
	if f.Verbosity < 0 {
		return logr.Logger{}, args.Wrongf("--v: must not be negative")
	}
	out = terminal.NewText(out) // JSON does not escape all control sequences
	options := &slog.HandlerOptions{Level: slog.Level(-f.Verbosity)}
	format := f.Format
	if f.TextIsKlog && format == "text" {
		format = "klog"
	}
	var handler slog.Handler
	switch format {
	case "text":
		handler = slog.NewTextHandler(out, options)
	case "json":
		handler = slog.NewJSONHandler(out, options)
	case "klog":
		config := textlogger.NewConfig(textlogger.Output(out), textlogger.Verbosity(f.Verbosity))
		handler = logr.ToSlogHandler(textlogger.NewLogger(config))
	default:
		return logr.Logger{}, args.Wrongf("--logging-format: unknown format %q; expected text, json or klog", f.Format)
	}
	handler = filter{handler}
	log := logr.FromSlogHandler(handler)
	ctrl.SetLogger(log)
	write := func(line []byte) { logLine(handler, line) }
	if format == "klog" {
		write = func(line []byte) { _, _ = out.Write(line) }
	}
	klog.SetLoggerWithOptions(log, klog.ContextualLogger(true), klog.WriteKlogBuffer(write))
	return log, nil
}

// levels are the levels of klog's severities, by the first letter of a line.
var levels = map[byte]slog.Level{'W': slog.LevelWarn, 'E': slog.LevelError, 'F': slog.LevelError}

// logLine logs a line in klog's format, such as "E1129 14:00:00.000000   12345 file.go:10] message".
func logLine(handler slog.Handler, line []byte) {
	header, message, ok := bytes.Cut(line, []byte("] "))
	if !ok {
		header, message = nil, line
	}
	level := slog.LevelInfo
	if len(header) > 0 {
		level = levels[header[0]]
	}
	record := slog.NewRecord(time.Now(), level, string(bytes.TrimSuffix(message, []byte("\n"))), 0)
	_ = handler.Handle(context.Background(), record)
}

// filter downgrades errors that are not errors. When a manager stops, controller-runtime logs the leadership
// that it has released as lost; this is dropped. Canceled operations, such as client-go's renewal of a lease,
// become informational messages. The filter also removes request and response bodies, which client-go logs at
// verbosity 8 and above, since they include Secrets.
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
	return h.Handler.Handle(ctx, withoutBodies(record))
}

// withoutBodies returns a record without request and response bodies.
func withoutBodies(record slog.Record) slog.Record {
	clean := slog.NewRecord(record.Time, record.Level, record.Message, record.PC)
	record.Attrs(func(attr slog.Attr) bool {
		clean.AddAttrs(withoutBody(attr))
		return true
	})
	return clean
}

// withoutBody returns an attribute, or a placeholder for a request or response body.
func withoutBody(attr slog.Attr) slog.Attr {
	if attr.Key == "body" {
		attr.Value = slog.StringValue("omitted: may contain secrets")
	}
	return attr
}

// errorOf returns the error of a record, or nil.
func errorOf(record slog.Record) (err error) {
	record.Attrs(func(attr slog.Attr) bool {
		err, _ = attr.Value.Any().(error)
		return err == nil
	})
	return err
}

func (h filter) WithAttrs(attrs []slog.Attr) slog.Handler {
	clean := make([]slog.Attr, len(attrs))
	for i, attr := range attrs {
		clean[i] = withoutBody(attr)
	}
	return filter{h.Handler.WithAttrs(clean)}
}

func (h filter) WithGroup(name string) slog.Handler { return filter{h.Handler.WithGroup(name)} }
