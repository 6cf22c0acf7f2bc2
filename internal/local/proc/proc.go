// Package proc finds processes that are not children of this one, and waits until they exit.
package proc

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// ErrNotFound means that no process with that PID is running.
var ErrNotFound = errors.New("no such process")

// Stat returns the status of a running process. A zombie is not running: it holds no port and no lock. It
// returns ErrNotFound if the process is not running.
func Stat(pid int) (procfs.ProcStat, error) {
	process, err := procfs.NewProc(pid)
	var stat procfs.ProcStat
	if err == nil {
		stat, err = process.Stat()
	}
	gone := errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH)
	if gone || err == nil && (stat.State == "Z" || stat.State == "X") {
		return procfs.ProcStat{}, ErrNotFound
	}
	return stat, err
}

// Open returns a handle of a process, which never refers to a later process with the same PID. It returns
// ErrNotFound if the process is not running.
func Open(pid int) (*os.Process, error) {
	if pid <= 0 {
		return nil, ErrNotFound
	}
	process, err := os.FindProcess(pid)
	if err != nil {
		return nil, err
	}
	if err := process.WithHandle(func(uintptr) {}); err != nil {
		_, gone := Stat(pid)
		return nil, cmp.Or(gone, err)
	}
	return process, nil
}

// AwaitEnd waits until a process has exited.
func AwaitEnd(process *os.Process) error {
	var result error
	err := process.WithHandle(func(handle uintptr) {
		// A process handle becomes readable when the process exits.
		poll := []unix.PollFd{{Fd: int32(handle), Events: unix.POLLIN}}
		for {
			if _, result = unix.Poll(poll, -1); !errors.Is(result, unix.EINTR) {
				return
			}
		}
	})
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return errors.Join(err, result)
}

// Listener returns the PID of the process that listens on a TCP port. It returns 0 if the process is not found,
// as it may belong to another user or process namespace.
func Listener(port int) int {
	files, err := procfs.NewDefaultFS()
	if err != nil {
		return 0
	}
	sockets := map[string]bool{}
	//lint:ignore SA1019 netlink needs a socket in the namespace, and a parser of our own
	for _, table := range []func() (procfs.NetTCP, error){files.NetTCP, files.NetTCP6} {
		lines, err := table()
		if err != nil {
			continue // no IPv6
		}
		for _, line := range lines {
			const listening = 0x0a
			if line.St == listening && line.LocalPort == uint64(port) {
				sockets[fmt.Sprintf("socket:[%d]", line.Inode)] = true
			}
		}
	}
	return holder(files, sockets)
}

// holder returns the process that has one of the sockets open.
func holder(files procfs.FS, sockets map[string]bool) int {
	processes, err := files.AllProcs()
	if err != nil || len(sockets) == 0 {
		return 0
	}
	for _, process := range processes {
		targets, err := process.FileDescriptorTargets()
		if err != nil {
			continue // of another user, or it has exited
		}
		for _, target := range targets {
			if sockets[target] {
				return process.PID
			}
		}
	}
	return 0
}
