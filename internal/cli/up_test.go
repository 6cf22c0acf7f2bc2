package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/internal/cli/localdir"
)

// TestAFolderIsOfOneDriver checks that a directory cannot be used with another driver, which would not know its
// machines.
func TestAFolderIsOfOneDriver(t *testing.T) {
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
	if said := up(localdir.DriverSim); !strings.Contains(said, further) {
		t.Errorf("a new directory: %s", said)
	}
	if err := localdir.SetDriver(dir, localdir.DriverVM); err != nil {
		t.Fatal(err)
	}
	if said := up(localdir.DriverVM); !strings.Contains(said, further) {
		t.Errorf("the same driver: %s", said)
	}
	if said := up(localdir.DriverSim); !strings.Contains(said, "was created with the driver vm") || !strings.Contains(said, "--dir") {
		t.Errorf("another driver: %s", said)
	}
	if said := printed(t, "status", "--dir", dir); !strings.Contains(said, "Start it with: millwright up --dir "+dir) {
		t.Errorf("status: %s", said)
	}
	if err := localdir.SetDriver(dir, localdir.DriverSim); err != nil {
		t.Fatal(err)
	}
	if said := printed(t, "status", "--dir", dir); !strings.Contains(said, "Start it with: millwright up --driver sim --dir "+dir) {
		t.Errorf("status: %s", said)
	}
	if _, err := os.Stat(filepath.Join(dir, "sim")); err == nil {
		t.Error("the other driver has begun all the same")
	}
}
