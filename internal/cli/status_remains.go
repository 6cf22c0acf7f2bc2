package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/millwright-dev/millwright/internal/local/controlplane"
)

// remains is what still runs of an "up" that was killed.
type remains struct {
	parts []string // of the control plane
	vms   int
}

func (r remains) none() bool { return len(r.parts) == 0 && r.vms == 0 }

func (r remains) String() string {
	var words []string
	if r.vms > 0 {
		words = append(words, countOf(r.vms, "virtual machine"))
	}
	return strings.Join(append(words, r.parts...), ", ")
}

// statusOfRemains says what runs in a folder that no "up" has.
func statusOfRemains(dir string, out io.Writer) error {
	found, err := findRemains(dir)
	if err != nil {
		return err
	}
	if found.none() {
		_, err := fmt.Fprintf(out, "Nothing runs in %s. Start it with: %s\n", dir, upAgain(dir))
		return err
	}
	_, err = fmt.Fprintf(out, `No "up" has %[1]s, but an earlier one was killed and left behind: %[2]s.
Go on with it:  %[3]s
Stop it:        millwright down --dir %[1]s
Do not delete the folder before it is stopped.
`, dir, found, upAgain(dir))
	return err
}

// findRemains looks for what runs in a folder, and changes nothing.
func findRemains(dir string) (remains, error) {
	parts, err := controlplane.LeftOvers(dir)
	if err != nil {
		return remains{}, err
	}
	// Whatever runs in a Pod of a host has this file locked, to the last of its processes.
	locks, err := filepath.Glob(filepath.Join(hostDir(dir, "*"), "pods", "*", "process.lock"))
	if err != nil {
		return remains{}, fmt.Errorf("looking for virtual machines in %s: %w", dir, err)
	}
	found := remains{parts: parts}
	for _, lock := range locks {
		held, err := isHeld(lock)
		if err != nil {
			return remains{}, fmt.Errorf("looking for virtual machines in %s: %w", dir, err)
		}
		if held {
			found.vms++
		}
	}
	return found, nil
}

// isHeld reports whether a living process has the file locked.
func isHeld(path string) (bool, error) {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil // its Pod is gone
	}
	if err != nil {
		return false, err
	}
	defer file.Close() // only read, and the lock goes with it
	err = unix.Flock(int(file.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	}
	return false, err
}
