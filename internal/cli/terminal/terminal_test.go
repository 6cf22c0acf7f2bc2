package terminal

import (
	"os"
	"testing"
)

// TestIsTerminal checks that a terminal without cursor control gets lines.
func TestIsTerminal(t *testing.T) {
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("there are no terminals here: %v", err)
	}
	t.Cleanup(func() { _ = terminal.Close() })
	for term, want := range map[string]bool{"xterm": true, "": true, "dumb": false} {
		t.Setenv("TERM", term)
		if got := Open(terminal) != nil; got != want {
			t.Errorf("TERM=%q: %t, want %t", term, got, want)
		}
	}
}
