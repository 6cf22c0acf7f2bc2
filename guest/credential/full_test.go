package credential

import (
	"errors"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millwright-dev/millwright/test/support/smallfs"
)

// TestSave_OnFullDisk: a disk that is a sparse file may have no space for a credential. An existing credential can still
// be replaced.
func TestSave_OnFullDisk(t *testing.T) {
	t.Attr("fault", "The disk is full while a guest stores its credential")
	fs := smallfs.New(t)
	disk := Store{fs.Path("disk")}
	if err := errors.Join(os.WriteFile(disk.Path, nil, 0o600), os.Truncate(disk.Path, 1<<20)); err != nil {
		t.Fatal(err)
	}
	large := example
	large.Certificate = make([]byte, 3*os.Getpagesize())
	for pages := range 3 {
		fs.Fill(pages)
		smallfs.WantNoSpace(t, disk.Save(large), disk.Path)
		if _, err := disk.Load(); !errors.Is(err, ErrNone) && !errors.Is(err, ErrDamaged) {
			t.Errorf("Load after a failed write = %v, want ErrNone or ErrDamaged", err)
		}
		fs.FreeSpace()
	}
	if err := disk.Save(example); err != nil {
		t.Fatalf("with free space: got error %v", err)
	}
	fs.Fill(0)
	if err := disk.Save(large); err != nil {
		t.Errorf("replacement: got error %v", err)
	}
	if got, err := disk.Load(); !cmp.Equal(got, large) {
		t.Errorf("Load = %+v (%v)", got, err)
	}
	t.Attr("outcome", "The write fails with an error that names the disk, and no credential is stored; the next write succeeds once there is free space; after that, renewals succeed even while the disk is full")
}
