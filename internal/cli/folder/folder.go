// Package folder defines the layout of a local cluster's folder.
package folder

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
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
	if err := os.WriteFile(driverFile(dir), []byte(driver+"\n"), 0o600); err != nil {
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
