// Package lazylog delays the formatting of log values until a line is written.
package lazylog

import "github.com/go-logr/logr"

// New returns a logger that formats its values when it writes a line. Every reconcile gets a logger with the
// names of its object, but few reconciles write a line, and the handlers of slog format values immediately.
func New(log logr.Logger) logr.Logger {
	to := log.GetSink()
	if to == nil {
		return log
	}
	return log.WithSink(sink{LogSink: to})
}

// sink collects the values of its logger.
type sink struct {
	logr.LogSink
	values []any
}

func (s sink) WithValues(values ...any) logr.LogSink {
	s.values = append(s.values[:len(s.values):len(s.values)], values...)
	return s
}

func (s sink) WithName(name string) logr.LogSink {
	return sink{LogSink: s.ready().WithName(name)}
}

func (s sink) Info(level int, message string, values ...any) {
	s.ready().Info(level, message, values...)
}

func (s sink) Error(err error, message string, values ...any) {
	s.ready().Error(err, message, values...)
}

func (s sink) ready() logr.LogSink {
	if len(s.values) == 0 {
		return s.LogSink
	}
	return s.LogSink.WithValues(s.values...)
}
