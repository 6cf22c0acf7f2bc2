package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// mountAll mounts the kernel's own file systems. The initial file system has their
// folders.
func mountAll() error {
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

// loadModules loads what is in /modules, in the order of the names. One that fails does
// not keep the others from being loaded.
func loadModules() error {
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

// rawTerminal hands over each byte as it is typed and echoes nothing: the console does
// both. Lines that are written still end as a terminal wants them.
func rawTerminal(file *os.File) {
	terminal, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	if err != nil {
		return // no terminal: nothing to set
	}
	terminal.Iflag &^= unix.ICRNL | unix.INLCR | unix.IGNCR | unix.IXON
	terminal.Lflag &^= unix.ECHO | unix.ICANON | unix.ISIG | unix.IEXTEN
	terminal.Cc[unix.VMIN], terminal.Cc[unix.VTIME] = 1, 0
	_ = unix.IoctlSetTermios(int(file.Fd()), unix.TCSETS, terminal)
}
