package console

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// Actions are what commands do to the machine. All are required.
type Actions struct {
	// Status describes the guest, in lines.
	Status func() string
	// PowerOff switches the machine off.
	PowerOff func()
	// Reboot restarts it.
	Reboot func()
	// Panic crashes the kernel.
	Panic func()
}

// Shell answers what is typed. Use NewShell.
type Shell struct {
	output  *Output
	actions Actions
	editor  Editor
	counter counter
}

// NewShell returns a shell that answers on the output.
func NewShell(output *Output, actions Actions) *Shell {
	return &Shell{output: output, actions: actions, counter: counter{print: output.Print}}
}

// Serve reads what is typed until the end of the input or an error, which it returns.
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
ping          answers pong
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

// counter prints numbers, from one on; it goes on where it was stopped.
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

// step prints the next number, unless this run was ended meanwhile.
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
