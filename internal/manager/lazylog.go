package manager

import "github.com/go-logr/logr"

// lazyLog returns a logger that formats its values when it writes a line. Every reconcile gets a
// logger with the names of its object, few write a line, and slog's handlers format values at once.
func lazyLog(log logr.Logger) logr.Logger {
	sink := log.GetSink()
	if sink == nil {
		return log
	}
	return log.WithSink(lazySink{LogSink: sink})
}

// lazySink collects the values of its logger.
type lazySink struct {
	logr.LogSink
	values []any
}

func (s lazySink) WithValues(values ...any) logr.LogSink {
	s.values = append(s.values[:len(s.values):len(s.values)], values...)
	return s
}

func (s lazySink) WithName(name string) logr.LogSink {
	return lazySink{LogSink: s.ready().WithName(name)}
}

func (s lazySink) Info(level int, message string, values ...any) {
	s.ready().Info(level, message, values...)
}

func (s lazySink) Error(err error, message string, values ...any) {
	s.ready().Error(err, message, values...)
}

func (s lazySink) ready() logr.LogSink {
	if len(s.values) == 0 {
		return s.LogSink
	}
	return s.LogSink.WithValues(s.values...)
}
