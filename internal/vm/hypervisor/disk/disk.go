package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// DefaultBytes is the size of a disk that nobody gave a size.
const DefaultBytes = 1 << 30

// ErrNotFile says that there is something else than a file where the disk should be.
var ErrNotFile = errors.New("the root disk is not a regular file; only files are implemented")

// Disk is a root disk in a file.
type Disk struct {
	// Path is the file. Its folder exists.
	Path string
	// Bytes is the size that is asked for. 0: DefaultBytes.
	Bytes uint64
}

// Size is how many bytes the disk shall have.
func (d Disk) Size() uint64 {
	if d.Bytes == 0 {
		return DefaultBytes
	}
	return d.Bytes
}

// Exists reports whether the disk is there, which means that it is complete.
func (d Disk) Exists() (bool, error) {
	info, err := os.Stat(d.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("looking for the root disk: %w", err)
	case !info.Mode().IsRegular():
		return false, fmt.Errorf("%s: %w", d.Path, ErrNotFile)
	default:
		return true, nil
	}
}

// MakeBlank makes the disk, without content and without taking space. What an
// interrupted attempt left is done away with.
func (d Disk) MakeBlank() error {
	partial := d.Path + ".partial"
	if err := os.Remove(partial); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing an unfinished root disk: %w", err)
	}
	file, err := os.OpenFile(partial, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("making the root disk: %w", err)
	}
	err = errors.Join(file.Truncate(int64(d.Size())), file.Sync(), file.Close())
	if err != nil {
		return fmt.Errorf("making the root disk: %w", err)
	}
	if err := os.Rename(partial, d.Path); err != nil {
		return fmt.Errorf("making the root disk: %w", err)
	}
	return syncFolder(filepath.Dir(d.Path))
}

// Grow makes the disk as big as asked for. A bigger one stays: what is in it may be
// anywhere.
func (d Disk) Grow() error {
	info, err := os.Stat(d.Path)
	if err != nil {
		return fmt.Errorf("looking for the root disk: %w", err)
	}
	if uint64(info.Size()) >= d.Size() {
		return nil
	}
	if err := os.Truncate(d.Path, int64(d.Size())); err != nil {
		return fmt.Errorf("growing the root disk: %w", err)
	}
	return nil
}

// syncFolder makes a rename outlast a crash of the host.
func syncFolder(path string) error {
	folder, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("opening the disk's folder: %w", err)
	}
	if err := errors.Join(folder.Sync(), folder.Close()); err != nil {
		return fmt.Errorf("writing the disk's folder: %w", err)
	}
	return nil
}
