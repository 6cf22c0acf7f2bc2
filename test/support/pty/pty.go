// Package pty runs commands on a pseudo-terminal.
package pty

import (
	"fmt"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"
)

// Run runs a command on a new terminal of the given size, and calls printed with each piece of its output.
func Run(command *exec.Cmd, columns, rows int, printed func(text string)) error {
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	defer terminal.Close() // nothing was written to a file
	if err := unix.IoctlSetPointerInt(int(terminal.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		return err
	}
	number, err := unix.IoctlGetInt(int(terminal.Fd()), unix.TIOCGPTN)
	if err != nil {
		return err
	}
	if err := unix.IoctlSetWinsize(int(terminal.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: uint16(rows), Col: uint16(columns)}); err != nil {
		return err
	}
	side, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	command.Stdout, command.Stderr = side, side
	err = command.Start()
	_ = side.Close() // the command has its own copy
	if err != nil {
		return err
	}
	buffer := make([]byte, 64<<10)
	for {
		n, err := terminal.Read(buffer)
		printed(string(buffer[:n]))
		if err != nil { // the command has exited
			return command.Wait()
		}
	}
}
