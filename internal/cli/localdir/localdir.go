// Package localdir defines the layout of a local cluster's directory.
package localdir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/millwright-dev/millwright/internal/local/controlplane"
	"github.com/millwright-dev/millwright/internal/local/directory"
)

// Default is the default directory of a local cluster.
const Default = ".millwright"

// The drivers of local clusters.
const (
	DriverVM  = "vm"
	DriverSim = "sim"
)

// HostDir returns the directory of a host.
func HostDir(dir, host string) string { return filepath.Join(dir, "hosts", host) }

// driverFile returns the file that holds the name of the directory's driver.
func driverFile(dir string) string { return filepath.Join(dir, "driver") }

// Driver returns the name of the driver that the directory was created with, or "" if it is new.
func Driver(dir string) (string, error) {
	content, err := os.ReadFile(driverFile(dir))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("cannot read which driver directory %s was created with: %w", dir, err)
	}
	return strings.TrimSpace(string(content)), nil
}

// SetDriver stores the name of the driver.
func SetDriver(dir, driver string) error {
	if err := directory.WriteFile(driverFile(dir), []byte(driver+"\n")); err != nil {
		return fmt.Errorf("cannot store the name of the driver in directory %s: %w", dir, err)
	}
	return nil
}

// MetricsSocket returns the path of the socket at which the manager serves its metrics.
func MetricsSocket(dir string) string { return filepath.Join(dir, "run", "manager.sock") }

// UpAgain returns the command that continues with a directory.
func UpAgain(dir string) string {
	if driver, err := Driver(dir); err == nil && driver == DriverSim {
		return "millwright up --driver sim --dir " + dir
	}
	return "millwright up --dir " + dir
}

// Cache returns the directory of what "make" built, such as the programs of the control plane:
// MILLWRIGHT_CACHE, or "millwright" in the user's cache directory.
func Cache() (string, error) {
	if dir := os.Getenv("MILLWRIGHT_CACHE"); dir != "" {
		return dir, nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("cannot find the build cache: %w; set MILLWRIGHT_CACHE to its directory", err)
	}
	return filepath.Join(dir, "millwright"), nil
}

// Remains are the processes of a local cluster whose "millwright up" was killed.
type Remains struct {
	// Parts are components of the control plane.
	Parts []string `json:"parts,omitempty"`
	// VMs is the number of virtual machines.
	VMs int `json:"virtualMachines,omitempty"`
}

// None reports whether nothing is running.
func (r Remains) None() bool { return len(r.Parts) == 0 && r.VMs == 0 }

// String lists the processes.
func (r Remains) String() string {
	var items []string
	if r.VMs > 0 {
		items = append(items, Count(r.VMs, "virtual machine"))
	}
	return strings.Join(append(items, r.Parts...), ", ")
}

// Count returns a number with a noun, such as "1 machine" or "2 machines".
func Count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// FindRemains returns the processes that still run in a directory.
func FindRemains(dir string) (Remains, error) {
	parts, err := controlplane.Orphans(dir)
	if err != nil {
		return Remains{}, err
	}
	// All processes of a Pod hold the lock of this file.
	locks, err := filepath.Glob(filepath.Join(HostDir(dir, "*"), "pods", "*", "process.lock"))
	if err != nil {
		return Remains{}, fmt.Errorf("cannot list the virtual machines in directory %s: %w", dir, err)
	}
	found := Remains{Parts: parts}
	for _, lock := range locks {
		held, err := directory.IsLocked(lock)
		if err != nil {
			return Remains{}, fmt.Errorf("cannot list the virtual machines in directory %s: %w", dir, err)
		}
		if held {
			found.VMs++
		}
	}
	return found, nil
}
