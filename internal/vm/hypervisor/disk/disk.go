// Package disk creates the disks of VMs and locks them for one process.
//
// If a disk file exists, it is complete: it is written under another name and then renamed. The content of its
// directory is not trusted, because a guest may have compromised an earlier process. Symbolic links are therefore
// not followed. For disks on block devices, see device.go.
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

// DefaultBytes is the size of a disk if no size is requested.
const DefaultBytes = 1 << 30

var (
	// ErrNotFile means that the path of a disk is neither a regular file nor a block device.
	ErrNotFile = errors.New("the disk is neither a regular file nor a block device")

	// ErrNotDevice means that a required block device does not exist.
	ErrNotDevice = errors.New("not a block device")

	// ErrLocked means that another process holds the lock of a disk.
	ErrLocked = errors.New("another process holds the disk")
)

// Disk is a disk in a file, or on a block device if there is one at the path.
type Disk struct {
	// Path is the path of the file or device. Its directory must exist.
	Path string
	// Bytes is the requested size. If 0, a file has DefaultBytes, and a device may have any size.
	Bytes uint64
}

// Size returns the requested size in bytes.
func (d Disk) Size() uint64 {
	if d.Bytes == 0 {
		return DefaultBytes
	}
	return d.Bytes
}

// Exists reports whether a disk file exists, which means that it is complete. An empty file is not a disk.
func (d Disk) Exists() (bool, error) {
	info, err := os.Lstat(d.Path) // a link could point to any file of the host
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("checking the disk: %w", err)
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

// Partial is a file that is renamed when it is complete. Until then its name has the suffix ".partial".
type Partial struct {
	*os.File
	path string
}

// CreatePartial creates an empty file that Commit renames to path. It replaces the file of an earlier attempt.
func CreatePartial(path string, mode fs.FileMode) (*Partial, error) {
	name := path + ".partial"
	// Remove it instead of truncating it, because another process may still write to the old file.
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return nil, err
	}
	return &Partial{File: file, path: path}, nil
}

// Commit makes the content durable first, and then the name.
func (p *Partial) Commit() error {
	if err := errors.Join(p.Sync(), p.Close()); err != nil {
		return err
	}
	if err := os.Rename(p.Name(), p.path); err != nil {
		return err
	}
	directory, err := os.Open(filepath.Dir(p.path))
	if err != nil {
		return err
	}
	return errors.Join(directory.Sync(), directory.Close())
}

// Discard removes the file. It has no effect after Commit.
func (p *Partial) Discard() {
	_ = p.Close()
	_ = os.Remove(p.Name())
}

// ReplaceFile replaces a file atomically. After a crash, even of the host, the file has either its old or its new
// content. After an error, no temporary file remains.
func ReplaceFile(path string, data []byte) error {
	partial, err := CreatePartial(path, 0o600)
	if err != nil {
		return err
	}
	defer partial.Discard()
	if _, err := partial.Write(data); err != nil {
		return err
	}
	return partial.Commit()
}

// Lock is the lock of a disk. The kernel releases it when the process terminates. The caller must keep a reference
// to the Lock until it is released, because otherwise the garbage collector closes its file.
type Lock struct {
	file   *os.File
	device bool
}

// Acquire locks the disk at a path by locking the file path.lock, without waiting. The lock belongs to an open
// file, so it also works within one process, and on network file systems that support locks. The lock of a device
// is on the device itself and excludes only processes on this host. Acquire returns ErrLocked if another process
// holds the lock.
func Acquire(path string) (*Lock, error) {
	if (Disk{Path: path}).IsDevice() {
		return acquireDevice(path)
	}
	file, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the disk's lock: %w", err)
	}
	// The file is never removed, because the lock of a removed file would not exclude other processes.
	wholeFile := unix.Flock_t{Type: unix.F_WRLCK}
	err = unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &wholeFile)
	if err == nil {
		return &Lock{file: file}, nil
	}
	_ = file.Close()
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return nil, ErrLocked
	}
	return nil, fmt.Errorf("locking the disk: %w", err)
}

// File returns the file of the lock. A process that inherits it keeps the disk locked until it terminates, too.
func (l *Lock) File() *os.File { return l.file }

// Release releases the lock. It has no effect if l is nil.
func (l *Lock) Release() error {
	if l == nil {
		return nil
	}
	return l.file.Close()
}

// maxWritten is the maximum number of bytes that Read returns.
const maxWritten = 1 << 10

// Write replaces the content of the lock file. The file is empty at first, and after a crash during Write.
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

// Read returns the content of the lock file.
func (l *Lock) Read() (string, error) {
	text, err := io.ReadAll(io.NewSectionReader(l.file, 0, maxWritten))
	return string(text), err
}

// Device returns the open file that holds the lock of a device, or nil if the disk is a file. A process that
// inherits the file holds the lock, too.
func (l *Lock) Device() *os.File {
	if l == nil || !l.device {
		return nil
	}
	return l.file
}
