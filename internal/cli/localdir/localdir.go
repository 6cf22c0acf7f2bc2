// Package folder defines the layout of a local cluster's folder.
package folder

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/millwright-dev/millwright/internal/local/controlplane"
	"github.com/millwright-dev/millwright/internal/local/folder"
)

// Default is the default folder of a local cluster.
const Default = ".millwright"

// The drivers of local clusters.
const (
	DriverVM  = "vm"
	DriverSim = "sim"
)

// HostDir returns the folder of a host.
func HostDir(dir, host string) string { return filepath.Join(dir, "hosts", host) }

// driverFile returns the file that contains the name of the folder's driver.
func driverFile(dir string) string { return filepath.Join(dir, "driver") }

// Driver returns the name of the driver that the folder was created with; empty if it is new.
func Driver(dir string) (string, error) {
	content, err := os.ReadFile(driverFile(dir))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("looking which driver %s was made with: %w", dir, err)
	}
	return strings.TrimSpace(string(content)), nil
}

// SetDriver stores the name of the driver.
func SetDriver(dir, driver string) error {
	if err := folder.WriteFile(driverFile(dir), []byte(driver+"\n")); err != nil {
		return fmt.Errorf("writing down the driver: %w", err)
	}
	return nil
}

// UpAgain returns the command line that continues with a folder.
func UpAgain(dir string) string {
	if driver, err := Driver(dir); err == nil && driver == DriverSim {
		return "millwright up --driver sim --dir " + dir
	}
	return "millwright up --dir " + dir
}

// Cache returns the folder of what "make" built, such as the programs of the control plane:
// MILLWRIGHT_CACHE, or else "millwright" in the user's cache folder.
func Cache() (string, error) {
	if dir := os.Getenv("MILLWRIGHT_CACHE"); dir != "" {
		return dir, nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("looking for what was built: %w", err)
	}
	return filepath.Join(dir, "millwright"), nil
}

// Remains are the processes of a local cluster whose "millwright up" was killed.
type Remains struct {
	// Parts are components of the control plane.
	Parts []string
	// VMs is the number of virtual machines.
	VMs int
}

// None reports whether nothing runs.
func (r Remains) None() bool { return len(r.Parts) == 0 && r.VMs == 0 }

// String lists the processes.
func (r Remains) String() string {
	var words []string
	if r.VMs > 0 {
		words = append(words, Count(r.VMs, "virtual machine"))
	}
	return strings.Join(append(words, r.Parts...), ", ")
}

// Count returns a number with a noun: "1 machine", "2 machines".
func Count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// FindRemains returns what still runs in a folder.
func FindRemains(dir string) (Remains, error) {
	parts, err := controlplane.LeftOvers(dir)
	if err != nil {
		return Remains{}, err
	}
	// All processes of a Pod hold the lock of this file.
	locks, err := filepath.Glob(filepath.Join(HostDir(dir, "*"), "pods", "*", "process.lock"))
	if err != nil {
		return Remains{}, fmt.Errorf("looking for virtual machines in %s: %w", dir, err)
	}
	found := Remains{Parts: parts}
	for _, lock := range locks {
		held, err := folder.IsLocked(lock)
		if err != nil {
			return Remains{}, fmt.Errorf("looking for virtual machines in %s: %w", dir, err)
		}
		if held {
			found.VMs++
		}
	}
	return found, nil
}
