// Package folder knows what a local cluster keeps in its folder.
package folder

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Default is the folder of a local cluster if no flag names another.
const Default = ".millwright"

// The drivers that local clusters are made with.
const (
	DriverVM  = "vm"
	DriverSim = "sim"
)

// HostDir is the folder of one host.
func HostDir(dir, host string) string { return filepath.Join(dir, "hosts", host) }

// driverFile is the file that says which driver the folder was made with.
func driverFile(dir string) string { return filepath.Join(dir, "driver") }

// Driver returns the driver that a folder was made with; empty if it is new.
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

// SetDriver writes down which driver the folder is made with.
func SetDriver(dir, driver string) error {
	if err := os.WriteFile(driverFile(dir), []byte(driver+"\n"), 0o600); err != nil {
		return fmt.Errorf("writing down the driver: %w", err)
	}
	return nil
}

// UpAgain is the command line that goes on with a folder.
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
