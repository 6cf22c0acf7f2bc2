// Package console writes the guest's messages to its serial console, and executes the commands that are typed
// there.
package console

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// Actions are the effects of commands. All are required.
type Actions struct {
	// Status returns a multi-line description of the guest.
	Status func() string
	// PowerOff powers the machine off.
	PowerOff func()
	// Reboot restarts the machine.
	Reboot func()
	// Panic crashes the kernel.
	Panic func()
}

// Shell executes typed commands. Use NewShell.
type Shell struct {
	output  *Output
	actions Actions
	editor  Editor
	counter counter
}

// NewShell returns a shell that responds on the output.
func NewShell(output *Output, actions Actions) *Shell {
	return &Shell{output: output, actions: actions, counter: counter{print: output.Print}}
}

// Serve reads input until its end or an error, which it returns.
func (s *Shell) Serve(input io.Reader) error {
	keys := make([]byte, longestLine)
	for {
		count, err := input.Read(keys)
		for _, key := range keys[:count] {
			echo, line, done := s.editor.Type(key)
			if echo != "" {
				s.output.Print(echo)
			}
			if done {
				s.Execute(line)
			}
		}
		if err != nil {
			return err
		}
	}
}

const help = `help          this list
status        what this guest is and does
ping          prints pong
count on|off  prints a number that grows, ten times a second
poweroff      switches the machine off
reboot        restarts the machine
panic         crashes the kernel, which restarts the machine
`

// Execute runs one command.
func (s *Shell) Execute(line string) {
	command := strings.Join(strings.Fields(line), " ")
	switch command {
	case "":
	case "help":
		s.output.Print(help)
	case "status":
		s.output.Print(s.actions.Status())
	case "ping":
		s.output.Print("pong\n")
	case "count on":
		s.counter.start()
	case "count off":
		s.counter.stop()
	case "poweroff":
		s.actions.PowerOff()
	case "reboot":
		s.actions.Reboot()
	case "panic":
		s.actions.Panic()
	default:
		s.output.Print(fmt.Sprintf("no such command: %s (try help)\n", command))
	}
}

const countInterval = 100 * time.Millisecond

// counter prints numbers from one; it continues where it was stopped.
type counter struct {
	print func(string)
	mu    sync.Mutex
	next  uint64
	end   chan struct{} // nil while stopped
}

func (c *counter) start() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.end == nil {
		c.end = make(chan struct{})
		go c.run(c.end)
	}
}

func (c *counter) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.end != nil {
		close(c.end)
		c.end = nil
	}
}

func (c *counter) run(end <-chan struct{}) {
	ticker := time.NewTicker(countInterval)
	defer ticker.Stop()
	for c.step(end) {
		select {
		case <-ticker.C:
		case <-end:
			return
		}
	}
}

// step prints the next number, unless this run has been stopped.
func (c *counter) step(end <-chan struct{}) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.end != end {
		return false
	}
	c.next++
	c.print(fmt.Sprintf("count %d\n", c.next))
	return true
}

// Control characters.
const (
	backspace = 0x08
	rubout    = 0x7f
	killLine  = 0x15 // ctrl-U
	interrupt = 0x03 // ctrl-C
)

// longestLine is the maximum length of a line; more input is ignored.
const longestLine = 128

// Editor edits a line. The zero value has an empty line.
type Editor struct {
	line     []byte
	returned bool // the last byte was a carriage return
}

// Type processes one byte of input. It returns what the terminal must show, and whether line is
// complete.
func (e *Editor) Type(key byte) (echo, line string, done bool) {
	returned := e.returned
	e.returned = key == '\r'
	switch {
	case key == '\n' && returned: // the second half of a line ending
		return "", "", false
	case key == '\r' || key == '\n':
		line, e.line = string(e.line), nil
		return "\n", line, true
	case key == backspace || key == rubout:
		return e.erase(1), "", false
	case key == killLine:
		return e.erase(len(e.line)), "", false
	case key == interrupt:
		e.line = nil
		return "^C\n", "", false
	case !e.takes(key):
		return "", "", false
	}
	e.line = append(e.line, key)
	return string(rune(key)), "", false
}

func (e *Editor) takes(key byte) bool {
	return key >= ' ' && key <= '~' && len(e.line) < longestLine
}

func (e *Editor) erase(count int) string {
	echo := ""
	for ; count > 0 && len(e.line) > 0; count-- {
		e.line = e.line[:len(e.line)-1]
		echo += "\b \b"
	}
	return echo
}

// Output writes to the console without blocking the caller: a console that is not read blocks
// its terminal, but not the guest. Use NewOutput.
type Output struct {
	queue  chan []byte
	flush  chan chan struct{}
	uptime func() time.Duration
}

// queued is the number of messages that wait for a blocked console. Further messages are lost.
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
