// Package directory locks directories and replaces files in them, so that a crash at any moment, even of the
// machine, leaves them usable.
package directory

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// ErrLocked means that a process, possibly this one, holds the lock.
var ErrLocked = errors.New("the lock is held")

// Lock takes the lock on a file, which it creates if necessary. The kernel releases the lock when all
// descriptors of the file are closed, at the latest when the process exits. It returns ErrLocked if the lock is
// held.
func Lock(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = ErrLocked
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// A lock may be held briefly by a process between fork and exec, which has all files of its parent, and by
// IsLocked.
const (
	retryLimit    = time.Second
	retryInterval = 5 * time.Millisecond
)

// LockWithRetry is like Lock, but waits for brief holders of the lock. It returns ErrLocked after a second.
func LockWithRetry(path string) (*os.File, error) {
	for deadline := time.Now().Add(retryLimit); ; time.Sleep(retryInterval) {
		file, err := Lock(path)
		if !errors.Is(err, ErrLocked) || time.Now().After(deadline) {
			return file, err
		}
	}
}

// IsLocked reports whether a process holds the lock on a file. A file that does not exist is not locked.
func IsLocked(path string) (bool, error) {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer file.Close() // releases the lock
	err = unix.Flock(int(file.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	}
	return false, err
}

// WriteFileIn is like WriteFile for a file below a directory with untrusted content: neither the name nor a
// link can lead outside. It does not wait until the file is durable. There must be only one call per file at a
// time.
func WriteFileIn(root *os.Root, name string, content []byte) error {
	if err := root.MkdirAll(path.Dir(name), 0o700); err != nil {
		return err
	}
	partial := path.Join(path.Dir(name), ".new-"+path.Base(name))
	if err := root.Remove(partial); err != nil && !errors.Is(err, os.ErrNotExist) { // from a crash
		return err
	}
	file, err := root.OpenFile(partial, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return of(filepath.Join(root.Name(), name), err)
	}
	_, err = file.Write(content)
	if err = errors.Join(err, file.Close()); err == nil {
		err = root.Rename(partial, name)
	}
	if err != nil {
		return errors.Join(of(filepath.Join(root.Name(), name), err), root.Remove(partial))
	}
	return nil
}

// of returns an error that names the file instead of the temporary file.
func of(path string, err error) error {
	var failed *fs.PathError
	if errors.As(err, &failed) {
		return &fs.PathError{Op: failed.Op, Path: path, Err: failed.Err}
	}
	return err
}

// WriteFile replaces a file atomically: a crash, even of the machine, leaves the old or the new file, and after
// WriteFile has returned, the new one. The mode is 0600. It creates the directory if necessary.
func WriteFile(path string, content []byte) error {
	return writeFile(path, content, (*os.File).Sync)
}

func writeFile(path string, content []byte, sync func(*os.File) error) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	temporary, err := os.CreateTemp(dir, ".new-*") // mode 0600
	if err != nil {
		return of(path, err)
	}
	defer os.Remove(temporary.Name()) // gone after the rename
	_, err = temporary.Write(content)
	if err == nil {
		// This must be before the rename, or the file could be empty after a power loss.
		err = sync(temporary)
	}
	if err = errors.Join(err, temporary.Close()); err != nil {
		return of(path, err)
	}
	if err := os.Rename(temporary.Name(), path); err != nil {
		return err
	}
	opened, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(sync(opened), opened.Close())
}
