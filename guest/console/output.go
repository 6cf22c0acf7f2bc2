// Package console writes the guest's messages to its serial console and executes the commands
// that are typed there.
package console

import (
	"fmt"
	"io"
	"time"
)

// Output writes to the console without blocking the caller: a console that is not read blocks
// its terminal, but not the guest. Use NewOutput.
type Output struct {
	queue  chan []byte
	flush  chan chan struct{}
	uptime func() time.Duration
}

// queued is how many messages wait for a blocked console. More are lost.
const queued = 256

// NewOutput returns an output that writes to w in the background. uptime is the time since
// boot.
func NewOutput(w io.Writer, uptime func() time.Duration) *Output {
	o := &Output{queue: make(chan []byte, queued), flush: make(chan chan struct{}), uptime: uptime}
	go o.run(w)
	return o
}

func (o *Output) run(w io.Writer) {
	for {
		select {
		case text := <-o.queue:
			_, _ = w.Write(text)
			continue
		default:
		}
		select {
		case text := <-o.queue:
			_, _ = w.Write(text)
		case done := <-o.flush:
			close(done)
		}
	}
}

// Logf writes a line with the time since boot.
func (o *Output) Logf(format string, arguments ...any) {
	seconds := o.uptime().Seconds()
	o.Print(fmt.Sprintf("[%6.2f] %s\n", seconds, fmt.Sprintf(format, arguments...)))
}

// Print writes a text.
func (o *Output) Print(text string) {
	select {
	case o.queue <- []byte(text):
	default:
	}
}

// Flush waits until everything is written, but not longer than the limit.
func (o *Output) Flush(limit time.Duration) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	done := make(chan struct{})
	select {
	case o.flush <- done:
	case <-timer.C:
		return
	}
	select {
	case <-done:
	case <-timer.C:
	}
}
