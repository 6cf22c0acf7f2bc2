package disk

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ErrLocked says that another process has the disk.
var ErrLocked = errors.New("another process holds the disk")

// Lock keeps other processes that ask for it from a disk. It is free when the process
// is gone, however it ended.
type Lock struct{ file *os.File }

// Acquire takes the lock of the disk at a path, by a file of that name and ".lock"
// beside it, or fails at once: with ErrLocked if another one has it. The lock counts
// between open files, so also within one process, and over network file systems that
// carry locks.
func Acquire(path string) (*Lock, error) {
	file, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the disk's lock: %w", err)
	}
	// The file is never removed: one that is locked without a name keeps nobody out.
	whole := unix.Flock_t{Type: unix.F_WRLCK}
	err = unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &whole)
	if err == nil {
		return &Lock{file}, nil
	}
	_ = file.Close()
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return nil, ErrLocked
	}
	return nil, fmt.Errorf("locking the disk: %w", err)
}

// Release returns the lock up. Nil is no lock, and fine.
func (l *Lock) Release() error {
	if l == nil {
		return nil
	}
	return l.file.Close()
}
