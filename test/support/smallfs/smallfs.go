// Package smallfs mounts small file systems for tests of full disks.
package smallfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const (
	// defaultSize is the default size of a file system in bytes.
	defaultSize = 256 << 10
	// maxFiles is the maximum number of files and directories of a file system.
	maxFiles = 512
)

// FS is a mounted file system.
type FS struct {
	// Dir is the mount point.
	Dir  string
	size int
	t    *testing.T
}

// New mounts a file system of 256 kB until the end of the test. It skips the test if the user does not have
// permission to mount.
func New(t *testing.T) *FS {
	t.Helper()
	return NewSize(t, defaultSize)
}

// NewSize is like New, with another size in bytes.
func NewSize(t *testing.T, size int) *FS {
	t.Helper()
	f := &FS{Dir: t.TempDir(), size: size, t: t}
	err := unix.Mount("smallfs", f.Dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=700,nr_inodes=%d", size, maxFiles))
	if errors.Is(err, unix.EPERM) {
		t.Skip("this user may not mount a file system")
	}
	f.must(err)
	t.Cleanup(func() {
		if err := unix.Unmount(f.Dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return f
}

// Path returns a path in the file system.
func (f *FS) Path(elements ...string) string {
	return filepath.Join(append([]string{f.Dir}, elements...)...)
}

func (f *FS) filler() string { return f.Path("filler") }

// FillFiles uses up all files and directories until FreeSpace is called.
func (f *FS) FillFiles() {
	f.t.Helper()
	f.must(os.Mkdir(f.filler(), 0o700))
	for i := range maxFiles {
		err := os.WriteFile(filepath.Join(f.filler(), fmt.Sprint(i)), nil, 0o600)
		if errors.Is(err, unix.ENOSPC) {
			return
		}
		f.must(err)
	}
	f.t.Fatalf("there is space for more than %d files", maxFiles)
}

// Fill fills the file system except for the given number of pages.
func (f *FS) Fill(pages int) {
	f.t.Helper()
	file, err := os.Create(f.filler())
	f.must(err)
	defer file.Close()
	written, err := file.Write(make([]byte, f.size+1))
	if !errors.Is(err, unix.ENOSPC) {
		f.t.Fatalf("the file system is not full: %v", err)
	}
	f.must(file.Truncate(max(0, int64(written)-int64(pages*os.Getpagesize()))))
}

// FreeSpace removes what Fill or FillFiles has written.
func (f *FS) FreeSpace() {
	f.t.Helper()
	f.must(os.RemoveAll(f.filler()))
}

// WantFiles fails the test unless the directory contains exactly these files, ignoring directories and the files
// of Fill.
func (f *FS) WantFiles(dir string, names ...string) {
	f.t.Helper()
	entries, err := os.ReadDir(dir)
	f.must(err)
	var got []string
	for _, entry := range entries {
		if !entry.IsDir() && filepath.Join(dir, entry.Name()) != f.filler() {
			got = append(got, entry.Name())
		}
	}
	if strings.Join(got, " ") != strings.Join(names, " ") {
		f.t.Errorf("%s has the files %q, want %q", dir, got, names)
	}
}

// WantNoSpace fails the test unless the error reports that there is no space for the file.
func WantNoSpace(t *testing.T, err error, path string) {
	t.Helper()
	if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), path+":") || !strings.Contains(err.Error(), unix.ENOSPC.Error()) {
		t.Errorf("got %v, want that there is no space for %s", err, path)
	}
}

func (f *FS) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}
