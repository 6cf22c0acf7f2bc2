// Package observe records what a driver does during a call.
package observe

import (
	"bytes"
	"fmt"
	"reflect"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
)

// Goroutines returns the number of running goroutines with the given profiler label. A goroutine inherits the label
// of the goroutine that started it.
func Goroutines(label string) int {
	var profile bytes.Buffer
	if pprof.Lookup("goroutine").WriteTo(&profile, 1) != nil {
		return 0
	}
	count := 0
	_, groups, _ := strings.Cut(profile.String(), "\n") // skip the total in the first line
	for group := range strings.SplitSeq(groups, "\n\n") {
		if !strings.Contains(group, strconv.Quote(label)) {
			continue
		}
		var n int
		if _, err := fmt.Sscanf(strings.TrimSpace(group), "%d @", &n); err == nil {
			count += n
		}
	}
	return count
}

// CopyOf returns a deep copy of a request.
func CopyOf[Q any](req *Q) *Q {
	made := *req
	value := reflect.ValueOf(&made).Elem()
	for i := range value.NumField() {
		value.Field(i).Set(deepCopy(value.Field(i)))
	}
	return &made
}

// deepCopy copies an object with its DeepCopy method and returns other values unchanged.
func deepCopy(value reflect.Value) reflect.Value {
	if value.Kind() == reflect.Pointer && !value.IsNil() {
		if method := value.MethodByName("DeepCopy"); method.IsValid() {
			return method.Call(nil)[0]
		}
	}
	return value
}

// Difference returns the name of the first field of a request that has changed.
func Difference[Q any](before, after *Q) string {
	was, is := reflect.ValueOf(before).Elem(), reflect.ValueOf(after).Elem()
	for i := range was.NumField() {
		if !reflect.DeepEqual(was.Field(i).Interface(), is.Field(i).Interface()) {
			return was.Type().Field(i).Name
		}
	}
	return ""
}

// Log collects log lines.
type Log struct {
	ch chan string
}

// Logger returns the logger. Call it only once.
func (l *Log) Logger() logr.Logger {
	l.ch = make(chan string, 1000)
	return funcr.New(func(prefix, args string) {
		select {
		case l.ch <- prefix + " " + args:
		default: // drop further lines
		}
	}, funcr.Options{Verbosity: 10, RenderArgsHook: withoutBodies})
}

// withoutBodies removes the request and response bodies that client-go logs. The logger of a manager does the same,
// and the driver does not log them itself.
func withoutBodies(args []any) []any {
	args = slices.Clone(args)
	for i := 0; i+1 < len(args); i += 2 {
		if args[i] == "body" {
			args[i+1] = ""
		}
	}
	return args
}

// Take returns the lines collected so far and clears them.
func (l *Log) Take() (logged []string) {
	for {
		select {
		case line := <-l.ch:
			logged = append(logged, line)
		default:
			return logged
		}
	}
}
