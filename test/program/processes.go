package program

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// Running is a process of this machine.
type Running struct {
	PID int
	// Args is its command line.
	Args string
}

// Processes finds those that belong to the "millwright up" of a folder, and whose command
// line has the words.
func Processes(t *testing.T, dir, words string) []Running {
	t.Helper()
	var found []Running
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		pid := 0
		if _, err := fmt.Sscanf(file, "/proc/%d/cmdline", &pid); err != nil {
			t.Fatal(err)
		}
		args := strings.ReplaceAll(string(text), "\x00", " ")
		environment, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid)) // it has ended
		mine := strings.Contains(args, dir) || strings.Contains(string(environment), vmpb.EnvRoot+"="+dir)
		if mine && strings.Contains(args, words) {
			found = append(found, Running{pid, args})
		}
	}
	return found
}
