package disks

import (
	"errors"
	"os"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disk"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/blockdev"
)

const deviceBytes = 4 << 20

// begin leaves an incomplete disk on a device.
func begin(t *testing.T, path string) {
	t.Helper()
	draft, err := disk.Disk{Path: path}.Draft(t.Context())
	must(t, err)
	draft.Discard()
}

func data(t *testing.T, path string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte("data"), 0o600))
}

func blank(*testing.T, string) {}

// A disk on a device that a guest has used is never overwritten, and a missing disk is not replaced by a blank
// one.
func TestSet_PrepareDevice(t *testing.T) {
	image := &vmpb.InitialImage{Url: "http://images/root"}
	prepare := &vmpb.VMSpec{Mode: vmpb.VMSpec_SM_PREPARE_IMAGE, InitialImage: image}
	had := &vmpb.VMSpec{Mode: vmpb.VMSpec_SM_RUN, InitialImage: image, RootDiskExists: true}
	kernel := &vmpb.VMSpec{Mode: vmpb.VMSpec_SM_RUN, InitialImage: image, RootDiskExists: true, KernelBoot: &vmpb.KernelBoot{}}
	none := &vmpb.VMSpec{Mode: vmpb.VMSpec_SM_RUN}
	for name, test := range map[string]struct {
		spec   *vmpb.VMSpec
		has    func(*testing.T, string)
		before bool
		want   error
		writes bool
		after  disk.Content
	}{
		"new":                                     {spec: prepare, has: blank, writes: true, after: disk.Data},
		"interrupted":                             {spec: prepare, has: begin, writes: true, after: disk.Data},
		"complete, but the report was lost":       {spec: prepare, has: data, after: disk.Data},
		"from an earlier run of the pod":          {spec: prepare, has: data, before: true, after: disk.Data},
		"missing after an earlier run of the pod": {spec: prepare, has: blank, before: true, want: ErrLost, after: disk.Blank},
		"there":                                {spec: had, has: data, after: disk.Data},
		"gone":                                 {spec: had, has: blank, want: ErrLost, after: disk.Blank},
		"missing, and another one was started": {spec: had, has: begin, want: ErrLost, after: disk.Begun},
		"made blank by a guest with its own kernel": {spec: kernel, has: blank, after: disk.Blank},
		"started, with its own kernel":              {spec: kernel, has: begin, want: ErrLost, after: disk.Begun},
		"without an image":                          {spec: none, has: blank, after: disk.Blank},
		"no longer with an image":                   {spec: none, has: begin, after: disk.Blank},
		"without an image, used":                    {spec: none, has: data, after: disk.Data},
		"smaller than before it grows":              {spec: bigger(had), has: data, after: disk.Data},
		"too small":                                 {spec: bigger(none), has: blank, want: disk.ErrTooSmall, after: disk.Blank},
	} {
		t.Run(name, func(t *testing.T) {
			_, path := blockdev.New(t, deviceBytes)
			test.has(t, path)
			s, wrote := New(test.spec, path, nil), false
			must(t, s.Lock())
			defer func() { must(t, s.Unlock()) }()
			_, err := s.Prepare(t.Context(), test.before, func(d Disk) error {
				wrote = true
				draft, err := d.Draft(t.Context())
				must(t, err)
				_, err = draft.WriteAt([]byte("image"), 0)
				return errors.Join(err, draft.Commit())
			})
			if !errors.Is(err, test.want) || wrote != test.writes {
				t.Errorf("error = %v, written = %v; want %v and %v", err, wrote, test.want, test.writes)
			}
			if got, err := (disk.Disk{Path: path}).Content(); err != nil || got != test.after {
				t.Errorf("Content() = %s, %v; want %s", got, err, test.after)
			}
		})
	}
}

func bigger(than *vmpb.VMSpec) *vmpb.VMSpec {
	spec := proto.CloneOf(than)
	spec.RootDiskBytes = 2 * deviceBytes
	return spec
}

// A missing device is not replaced by a file.
func TestSet_MissingDeviceIsNotReplaced(t *testing.T) {
	dir := t.TempDir()
	s := New(&vmpb.VMSpec{DataDisks: []*vmpb.DataDisk{{Name: "db", Path: vmpb.DataDevicePath("db")}}}, dir+"/root", map[string]string{"db": dir + "/db"})
	if err := s.Lock(); !errors.Is(err, disk.ErrNotDevice) {
		t.Errorf("error = %v, want ErrNotDevice", err)
	}
	if lock, err := disk.Acquire(dir + "/root"); err != nil || lock.Release() != nil {
		t.Errorf("the other disk is locked: %v", err)
	}
}

// The guest runs only once the controller knows about a disk whose content does not prove that it is complete.
func TestSet_MustBeKnown(t *testing.T) {
	_, device := blockdev.New(t, deviceBytes)
	image := &vmpb.InitialImage{Url: "http://images/db"}
	for name, test := range map[string]struct {
		path string
		disk *vmpb.DataDisk
		want bool
	}{
		"new":     {device, &vmpb.DataDisk{Name: "db", InitialImage: image}, true},
		"known":   {device, &vmpb.DataDisk{Name: "db", InitialImage: image, Exists: true}, false},
		"blank":   {device, &vmpb.DataDisk{Name: "db"}, false},
		"in file": {t.TempDir() + "/db", &vmpb.DataDisk{Name: "db", InitialImage: image}, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := New(&vmpb.VMSpec{DataDisks: []*vmpb.DataDisk{test.disk}}, t.TempDir()+"/root", map[string]string{"db": test.path})
			if got := s.MustBeKnown(); got != test.want {
				t.Errorf("MustBeKnown() = %v", got)
			}
		})
	}
}

// A device may be larger than the disk that is received, but not smaller.
func TestSet_DiskArrivesOnDevice(t *testing.T) {
	_, device := blockdev.New(t, deviceBytes)
	s := New(&vmpb.VMSpec{}, device, nil)
	must(t, s.Lock())
	defer func() { must(t, s.Unlock()) }()
	must(t, s.MakeBlank([]*vmpb.DiskSize{{Bytes: deviceBytes - 512}}))
	if err := s.MakeBlank([]*vmpb.DiskSize{{Bytes: deviceBytes + 512}}); !errors.Is(err, disk.ErrTooSmall) {
		t.Errorf("error = %v, want ErrTooSmall", err)
	}
	sizes, err := s.Sizes()
	must(t, err)
	var attached qemu.Disks
	must(t, s.Attach(&attached))
	must(t, s.Attach(&attached)) // repeated
	if !attached.Root.Block || len(attached.Locks) != 1 || sizes[0].GetBytes() != deviceBytes {
		t.Errorf("attached %+v, %v bytes", attached, sizes[0].GetBytes())
	}
}
