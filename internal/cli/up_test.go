package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/internal/cli/localdir"
)

// TestUp_DirectoryBelongsToOneDriver checks that a directory cannot be used with another driver, which would not know its
// machines.
func TestUp_DirectoryBelongsToOneDriver(t *testing.T) {
	dir := t.TempDir()
	up := func(driver string) string {
		var stdout, stderr bytes.Buffer
		status := Main(Program{Args: []string{"up", "--driver", driver, "--dir", dir, "--binaries", "/nowhere/at/all"}, Stdout: &stdout, Stderr: &stderr})
		if status != 1 {
			t.Errorf("status %d", status)
		}
		return stderr.String()
	}
	const further = "/nowhere/at/all" // the command proceeds until it looks for the programs
	if message := up(localdir.DriverSim); !strings.Contains(message, further) {
		t.Errorf("a new directory: %s", message)
	}
	if err := localdir.SetDriver(dir, localdir.DriverVM); err != nil {
		t.Fatal(err)
	}
	if message := up(localdir.DriverVM); !strings.Contains(message, further) {
		t.Errorf("the same driver: %s", message)
	}
	if message := up(localdir.DriverSim); !strings.Contains(message, "was created with the driver vm") || !strings.Contains(message, "--dir") {
		t.Errorf("another driver: %s", message)
	}
	if message := printed(t, "status", "--dir", dir); !strings.Contains(message, "Start it with: millwright up --dir "+dir) {
		t.Errorf("status: %s", message)
	}
	if err := localdir.SetDriver(dir, localdir.DriverSim); err != nil {
		t.Fatal(err)
	}
	if message := printed(t, "status", "--dir", dir); !strings.Contains(message, "Start it with: millwright up --driver sim --dir "+dir) {
		t.Errorf("status: %s", message)
	}
	if _, err := os.Stat(filepath.Join(dir, "sim")); err == nil {
		t.Error("the other driver has begun all the same")
	}
}
