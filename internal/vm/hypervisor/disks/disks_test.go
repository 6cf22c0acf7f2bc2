package disks

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disk"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// set returns a root disk and the data disks logs and db.
func set(t *testing.T, change func(*vmpb.VMSpec)) (*Set, string) {
	t.Helper()
	dir := t.TempDir()
	spec := &vmpb.VMSpec{RootDiskBytes: 1 << 20, DataDisks: []*vmpb.DataDisk{
		{Name: "logs", Bytes: 2 << 20}, {Name: "db", Bytes: 3 << 20, InitialImage: &vmpb.InitialImage{Url: "http://images/db"}},
	}}
	change(spec)
	return New(spec, filepath.Join(dir, "root"), map[string]string{"logs": filepath.Join(dir, "logs"), "db": filepath.Join(dir, "db")}), dir
}

func same(*vmpb.VMSpec) {}

func TestSet_LockIsAllOrNothing(t *testing.T) {
	s, dir := set(t, same)
	other, err := disk.Acquire(filepath.Join(dir, "db"))
	must(t, err)
	if err := s.Lock(); !errors.Is(err, disk.ErrLocked) {
		t.Errorf("error = %v, want ErrLocked", err)
	}
	root, err := disk.Acquire(filepath.Join(dir, "root")) // the lock was released
	must(t, err)
	must(t, errors.Join(root.Release(), other.Release()))
	must(t, s.Lock())
	if _, err := disk.Acquire(filepath.Join(dir, "logs")); !errors.Is(err, disk.ErrLocked) {
		t.Errorf("error = %v, want ErrLocked", err)
	}
	must(t, s.Unlock())
}

func TestSet_Prepare(t *testing.T) {
	lost := func(spec *vmpb.VMSpec) { spec.DataDisks[0].Exists = true }
	for name, test := range map[string]struct {
		change func(*vmpb.VMSpec)
		before bool
		isNew  bool
		want   error
		files  string
	}{
		"new":                 {same, false, true, nil, "root logs db "},
		"only one existed":    {lost, false, false, ErrLost, "root "},
		"from an earlier run": {same, true, false, ErrLost, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s, dir := set(t, test.change)
			written := ""
			isNew, err := s.Prepare(t.Context(), test.before, func(d Disk) error { written += d.Name; return d.MakeBlank() })
			if !errors.Is(err, test.want) || isNew != test.isNew {
				t.Errorf("isNew = %v, error = %v; want %v and %v", isNew, err, test.isNew, test.want)
			}
			files := ""
			for _, name := range []string{"root", "logs", "db"} {
				if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
					files += name + " "
				}
			}
			if files != test.files || test.want == nil && written != "db" {
				t.Errorf("files = %q, disks with an image = %q", files, written)
			}
		})
	}
}

// Received disks are created empty, with the sizes of the source's disks instead of those in the specification.
func TestSet_MakeBlank(t *testing.T) {
	s, _ := set(t, same)
	sizes := []*vmpb.DiskSize{{Bytes: 5 << 20}, {Name: "logs", Bytes: 4 << 20}, {Name: "db", Bytes: 6 << 20}}
	must(t, s.MakeBlank(sizes))
	got, err := s.Sizes()
	must(t, err)
	if diff := cmp.Diff(sizes, got, protocmp.Transform()); diff != "" {
		t.Errorf("sizes (-want +got):\n%s", diff)
	}
	var attached qemu.Disks
	must(t, s.Attach(&attached))
	must(t, s.Attach(&attached)) // repeated
	if attached.Root.Path == "" || len(attached.Data) != 2 || attached.Data[1].Serial != "db" {
		t.Errorf("attached: %+v", attached)
	}
	if err := s.MakeBlank(sizes[:2]); err == nil {
		t.Error("accepted a disk without a size")
	}
	sizes[2].Bytes = MaxBytes + 1
	if err := s.MakeBlank(sizes); err == nil {
		t.Error("accepted a disk of more than 4 PiB")
	}
}

func TestSet_Growing(t *testing.T) {
	has := []*vmpb.DiskSize{{Bytes: 10}, {Name: "logs", Bytes: 10}, {Name: "db", Bytes: 10}}
	desired := []*vmpb.DiskSize{{Bytes: 11}, {Name: "logs", Bytes: 9}, {Name: "db", Bytes: MaxBytes + 1}, {Name: "other", Bytes: 11}}
	if diff := cmp.Diff(desired[:1], Growing(has, desired), protocmp.Transform()); diff != "" {
		t.Errorf("growing (-want +got):\n%s", diff)
	}
}

func TestRecord_IsKept(t *testing.T) {
	run := t.TempDir()
	for _, want := range []bool{false, true} {
		if had, err := Recorded(run); err != nil || had != want {
			t.Errorf("recorded: %v, %v; want %v", had, err, want)
		}
		must(t, Record(run))
	}
}
