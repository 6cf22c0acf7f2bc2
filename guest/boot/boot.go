// Package boot prepares the system for the first program of the guest's initrd.
package boot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Mount mounts the kernel's file systems on directories of the initrd.
func Mount() error {
	var problems []error
	for _, m := range []struct{ kind, target string }{
		{"devtmpfs", "/dev"}, {"proc", "/proc"}, {"sysfs", "/sys"},
	} {
		if err := unix.Mount(m.kind, m.target, m.kind, unix.MS_NOSUID|unix.MS_NOEXEC, ""); err != nil {
			problems = append(problems, fmt.Errorf("mounting %s: %w", m.target, err))
		}
	}
	return errors.Join(problems...)
}

// LoadModules loads all modules in /modules, in the order of their names.
func LoadModules() error {
	paths, err := filepath.Glob("/modules/*.ko") // sorted
	if err != nil {
		return err
	}
	var problems []error
	for _, path := range paths {
		if err := loadModule(path); err != nil {
			problems = append(problems, fmt.Errorf("loading %s: %w", filepath.Base(path), err))
		}
	}
	return errors.Join(problems...)
}

func loadModule(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	if err := unix.FinitModule(int(file.Fd()), "", 0); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}
