package console

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// screen collects the output.
type screen struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

func TestEditor(t *testing.T) {
	for name, test := range map[string]struct {
		typed, shown string
		lines        []string
	}{
		"Line":           {"ping\n", "ping\n", []string{"ping"}},
		"Return":         {"ping\r", "ping\n", []string{"ping"}},
		"Both":           {"a\r\nb\r\n", "a\nb\n", []string{"a", "b"}},
		"Empty":          {"\n\n", "\n\n", []string{"", ""}},
		"Erase":          {"ax\x7fb\n", "ax\b \bb\n", []string{"ab"}},
		"Backspace":      {"ax\x08b\n", "ax\b \bb\n", []string{"ab"}},
		"EraseNothing":   {"\x7f\x7fa\n", "a\n", []string{"a"}},
		"Kill":           {"xyz\x15a\n", "xyz\b \b\b \b\b \ba\n", []string{"a"}},
		"Interrupt":      {"xyz\x03a\n", "xyz^C\na\n", []string{"a"}},
		"ControlIgnored": {"a\x1b\x00\xffb\n", "ab\n", []string{"ab"}},
		"TooLong":        {strings.Repeat("a", 200) + "\n", strings.Repeat("a", longestLine) + "\n", []string{strings.Repeat("a", longestLine)}},
	} {
		t.Run(name, func(t *testing.T) {
			var editor Editor
			var shown string
			var lines []string
			for _, key := range []byte(test.typed) {
				echo, line, done := editor.Type(key)
				shown += echo
				if done {
					lines = append(lines, line)
				}
			}
			if diff := cmp.Diff(test.lines, lines); diff != "" || shown != test.shown {
				t.Errorf("shown = %q, want %q; lines (-want +got)\n%s", shown, test.shown, diff)
			}
		})
	}
}

// newShell must be called in a synctest bubble that completes with its output blocked: outputs live as long as the
// guest.
func newShell(calls *[]string) (*Shell, *Output) {
	output := &Output{queue: make(chan []byte, queued), uptime: func() time.Duration { return 1230 * time.Millisecond }}
	call := func(name string) func() { return func() { *calls = append(*calls, name) } }
	return NewShell(output, Actions{
		Status: func() string { return "fine\n" }, PowerOff: call("poweroff"), Reboot: call("reboot"), Panic: call("panic"),
	}), output
}

func taken(o *Output) string {
	text := ""
	for len(o.queue) > 0 {
		text += string(<-o.queue)
	}
	return text
}

func TestConsole_Commands(t *testing.T) {
	var calls []string
	shell, output := newShell(&calls)
	for command, want := range map[string]string{
		"ping": "pong\n", "  ping  ": "pong\n", "status": "fine\n", "help": help, "": "",
		"fly": "no such command: fly (try help)\n", "count": "no such command: count (try help)\n",
	} {
		shell.Execute(command)
		if got := taken(output); got != want {
			t.Errorf("%q prints %q, want %q", command, got, want)
		}
	}
	shell.Execute("poweroff")
	shell.Execute("reboot")
	shell.Execute("panic")
	if diff := cmp.Diff([]string{"poweroff", "reboot", "panic"}, calls); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestServe_EchoesInput(t *testing.T) {
	shell, output := newShell(new([]string))
	if err := shell.Serve(strings.NewReader("pinx\x7fg\r")); err != io.EOF {
		t.Errorf("Serve = %v, want io.EOF", err)
	}
	if got, want := taken(output), "pinx\b \bg\npong\n"; got != want {
		t.Errorf("got console output %q, want %q", got, want)
	}
}

func TestCounter_Continues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shell, output := newShell(new([]string))
		want := ""
		for i := range 6 {
			want += fmt.Sprintf("count %d\n", i+1)
		}
		for range 2 {
			shell.Execute("count on")
			shell.Execute("count on") // changes nothing
			time.Sleep(2*countInterval + countInterval/2)
			shell.Execute("count off")
			time.Sleep(10 * countInterval)
		}
		if got := taken(output); got != want {
			t.Errorf("got console output %q, want %q", got, want)
		}
	})
}

func TestLog_HasTime(t *testing.T) {
	var out screen
	output := NewOutput(&out, func() time.Duration { return 1230 * time.Millisecond })
	output.Logf("node %s is Ready", "one")
	output.Flush(time.Minute)
	if got, want := out.String(), "[  1.23] node one is Ready\n"; got != want {
		t.Errorf("got console output %q, want %q", got, want)
	}
}

// TestConsole_BlockedDoesNotStopWriters: writers continue, and the last output does not wait forever.
func TestConsole_BlockedDoesNotStopWriters(t *testing.T) {
	stuck, release := io.Pipe()
	output := NewOutput(release, func() time.Duration { return 0 })
	for i := range 2 * queued {
		output.Logf("line %d", i)
	}
	output.Flush(time.Millisecond)
	first := make([]byte, 64)
	if length, err := stuck.Read(first); err != nil || string(first[:length]) != "[  0.00] line 0\n" {
		t.Errorf("got first line %q, %v", first[:length], err)
	}
}
