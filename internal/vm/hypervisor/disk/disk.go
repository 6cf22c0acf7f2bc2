// Package disk creates the disks of VMs and locks them for one process.
//
// A disk in a file that exists is complete: it is written under another name and then renamed. The
// content of its folder is not trusted, since an earlier process may have been taken over by
// its guest: symbolic links there are not followed. What makes a disk on a block device complete is in device.go.
package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// DefaultBytes is the size of a disk if none is given.
const DefaultBytes = 1 << 30

var (
	// ErrNotFile means that the path of a disk is neither that of a regular file nor that of a block device.
	ErrNotFile = errors.New("the disk is neither a regular file nor a block device")

	// ErrNotDevice means that there is no block device where one must be.
	ErrNotDevice = errors.New("there is no block device")

	// ErrLocked means that another process holds the lock of a disk.
	ErrLocked = errors.New("another process holds the disk")
)

// Disk is a disk in a file, or on a block device if there is one at the path.
type Disk struct {
	// Path of the file or of the device. Its folder exists.
	Path string
	// Bytes is the requested size. 0: DefaultBytes for a file; any for a device.
	Bytes uint64
}

// Size returns the requested size in bytes.
func (d Disk) Size() uint64 {
	if d.Bytes == 0 {
		return DefaultBytes
	}
	return d.Bytes
}

// Exists reports whether the disk in a file exists, which means that it is complete. An empty file is no
// disk.
func (d Disk) Exists() (bool, error) {
	info, err := os.Lstat(d.Path) // a link might lead to any file of the host
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("looking for the disk: %w", err)
	case !info.Mode().IsRegular():
		return false, fmt.Errorf("%s: %w", d.Path, ErrNotFile)
	default:
		return info.Size() > 0, nil
	}
}

// MakeBlank creates the disk as a sparse file.
func (d Disk) MakeBlank() error {
	file, err := CreatePartial(d.Path, 0o600)
	if err != nil {
		return fmt.Errorf("creating the disk: %w", err)
	}
	defer file.Discard()
	if err = file.Truncate(int64(d.Size())); err == nil {
		err = file.Commit()
	}
	if err != nil {
		return fmt.Errorf("creating the disk: %w", err)
	}
	return nil
}

// Grow enlarges the file to the requested size. It never shrinks a disk.
func (d Disk) Grow() error {
	file, err := os.OpenFile(d.Path, os.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("growing the disk: %w", err)
	}
	info, err := file.Stat()
	if err == nil && uint64(info.Size()) < d.Size() {
		err = file.Truncate(int64(d.Size()))
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("growing the disk: %w", err)
	}
	return nil
}

// Partial is a file that is renamed when it is complete. Until then its name ends in
// ".partial".
type Partial struct {
	*os.File
	path string
}

// CreatePartial creates an empty file that Commit renames to path. It replaces what an
// earlier attempt left.
func CreatePartial(path string, mode fs.FileMode) (*Partial, error) {
	name := path + ".partial"
	// Removed, not truncated: a process that still writes to it must not write here.
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return nil, err
	}
	return &Partial{File: file, path: path}, nil
}

// Commit makes the content durable, and then the name.
func (p *Partial) Commit() error {
	if err := errors.Join(p.Sync(), p.Close()); err != nil {
		return err
	}
	if err := os.Rename(p.Name(), p.path); err != nil {
		return err
	}
	folder, err := os.Open(filepath.Dir(p.path))
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

// Discard removes the file. After Commit it does nothing.
func (p *Partial) Discard() {
	_ = p.Close()
	_ = os.Remove(p.Name())
}

// Lock is the lock of a disk. The kernel releases it when the process ends. Keep the Lock until it is released: the
// garbage collector closes the file of one that nothing refers to.
type Lock struct {
	file   *os.File
	device bool
}

// Acquire locks the disk at a path with the file path.lock, without waiting. The lock belongs
// to an open file, so it also works within one process, and on network file systems that
// support locks. The lock of a device is of the device itself, and excludes others on this host only. Errors: ErrLocked.
func Acquire(path string) (*Lock, error) {
	if (Disk{Path: path}).IsDevice() {
		return acquireDevice(path)
	}
	file, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the disk's lock: %w", err)
	}
	// The file is never removed: the lock of a file without a name excludes no process.
	whole := unix.Flock_t{Type: unix.F_WRLCK}
	err = unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &whole)
	if err == nil {
		return &Lock{file: file}, nil
	}
	_ = file.Close()
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return nil, ErrLocked
	}
	return nil, fmt.Errorf("locking the disk: %w", err)
}

// File is the file of the lock. A process that inherits it keeps the disk locked until it has ended, too.
func (l *Lock) File() *os.File { return l.file }

// Release releases the lock. It does nothing if l is nil.
func (l *Lock) Release() error {
	if l == nil {
		return nil
	}
	return l.file.Close()
}

// maxWritten is the length of what Read reads.
const maxWritten = 1 << 10

// Write replaces what the file of the lock says. It says nothing after a crash in between, or at first.
func (l *Lock) Write(text string) error {
	err := l.file.Truncate(0)
	if err == nil {
		_, err = l.file.WriteAt([]byte(text), 0)
	}
	if err == nil {
		err = l.file.Sync()
	}
	return err
}

// Read returns what the file of the lock says.
func (l *Lock) Read() (string, error) {
	text, err := io.ReadAll(io.NewSectionReader(l.file, 0, maxWritten))
	return string(text), err
}

// Device returns the open file that has the lock of a device; nil if it is that of a file. A process that inherits it
// holds the lock, too.
func (l *Lock) Device() *os.File {
	if l == nil || !l.device {
		return nil
	}
	return l.file
}
