// Package blockdev provides loop devices, which are removed at the end of the test.
package blockdev

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/millwright-dev/millwright/internal/loop"
)

// New returns a file and the path of a node of its block device. The node is private, as in the container of a
// Pod. New skips the test if the privileges are missing.
func New(t testing.TB, bytes int64) (file, device string) {
	t.Helper()
	if err := loop.Available(); err != nil {
		t.Skip(err)
	}
	file = filepath.Join(t.TempDir(), "device.raw")
	backing, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	must(t, err)
	must(t, backing.Truncate(bytes))
	at, err := loop.Attach(backing)
	must(t, err)
	t.Cleanup(func() {
		must(t, loop.Detach(backing))
		must(t, backing.Close())
	})
	return file, Node(t, at)
}

// Grow enlarges a device, as its storage would.
func Grow(t testing.TB, file string, bytes int64) {
	t.Helper()
	must(t, os.Truncate(file, bytes))
	backing, err := os.OpenFile(file, os.O_RDWR, 0)
	must(t, err)
	must(t, loop.Resize(backing))
	must(t, backing.Close())
}

// Node returns the path of another node of a device.
func Node(t testing.TB, of string) string {
	t.Helper()
	var info unix.Stat_t
	must(t, unix.Stat(of, &info))
	path := filepath.Join(t.TempDir(), "device")
	must(t, unix.Mknod(path, unix.S_IFBLK|0o600, int(info.Rdev)))
	return path
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
