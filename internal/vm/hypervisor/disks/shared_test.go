package disks

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disk"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/blockdev"
)

func shared(spec *vmpb.VMSpec) { spec.RootDiskShared = true }

// The locks of shared disks are released for another hypervisor and acquired again. Other disks stay locked.
func TestSet_ReleaseUnlocksSharedDisks(t *testing.T) {
	for name, change := range map[string]func(*vmpb.VMSpec){"shared": shared, "own": same} {
		t.Run(name, func(t *testing.T) {
			s, _ := set(t, change)
			must(t, s.Lock())
			must(t, s.Release())
			if s.Locked() == (name == "shared") {
				t.Errorf("locked: %t", s.Locked())
			}
			for _, d := range s.all {
				if lock, err := disk.Acquire(d.Path); (err == nil) != (name == "shared") {
					t.Errorf("%s: %v", d.Path, err)
				} else {
					must(t, lock.Release())
				}
			}
			if name == "shared" {
				must(t, s.Lock())
			}
			if !s.Locked() {
				t.Error("the disks are not locked")
			}
			must(t, s.Unlock())
		})
	}
}

// Shared disks must exist and do not change.
func TestSet_ExpectSharedDisks(t *testing.T) {
	s, dir := set(t, shared)
	for _, name := range []string{"root", "logs", "db"} {
		if err := s.Expect(nil); !errors.Is(err, ErrLost) {
			t.Fatalf("without %s: error = %v, want ErrLost", name, err)
		}
		must(t, os.WriteFile(filepath.Join(dir, name), []byte("data"), 0o600))
	}
	must(t, s.Expect(nil))
	if err := s.Expect([]*vmpb.DiskSize{{Bytes: 1 << 20}, {Name: "logs", Bytes: 1 << 20}, {Name: "db", Bytes: 1 << 20}}); err == nil {
		t.Error("accepted sizes for disks that are not copied")
	}
	for _, name := range []string{"root", "logs", "db"} {
		if content, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(content) != "data" {
			t.Errorf("%s has %q, %v", name, content, err)
		}
	}
}

// A machine with shared disks neither uses the host's page cache nor inherits a lock, which it would hold until it
// exits.
func TestSet_AttachSharedDisks(t *testing.T) {
	_, device := blockdev.New(t, deviceBytes)
	for name, is := range map[string]bool{"shared": true, "own": false} {
		t.Run(name, func(t *testing.T) {
			s := New(&vmpb.VMSpec{RootDiskShared: is, LeaseMode: vmpb.LeaseMode_LM_FULL_LEASES, RootDiskPath: vmpb.RootDevicePath}, device, nil)
			if is {
				must(t, s.Expect(nil))
			}
			must(t, s.Lock())
			defer func() { must(t, s.Unlock()) }()
			var to qemu.Disks
			must(t, s.Attach(&to))
			if to.Root.Direct != is || len(to.Locks) > 0 == is {
				t.Errorf("attached as %+v", to)
			}
		})
	}
}

func TestUnlocked(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*vmpb.VMSpec)
		want   bool
	}{
		"files":                   {func(*vmpb.VMSpec) {}, false},
		"a device":                {func(s *vmpb.VMSpec) { s.RootDiskPath = vmpb.RootDevicePath }, true},
		"a data disk on a device": {func(s *vmpb.VMSpec) { s.DataDisks[1].Path = vmpb.DataDevicePath("db") }, true},
		"a device of one hypervisor": {func(s *vmpb.VMSpec) {
			s.RootDiskPath, s.RootDiskShared = vmpb.RootDevicePath, false
		}, false},
		"leases that expire": {func(s *vmpb.VMSpec) {
			s.RootDiskPath, s.LeaseMode = vmpb.RootDevicePath, vmpb.LeaseMode_LM_FULL_LEASES
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			spec := &vmpb.VMSpec{RootDiskShared: true, LeaseMode: vmpb.LeaseMode_LM_STORAGE_LOCKING, DataDisks: []*vmpb.DataDisk{{Name: "logs"}, {Name: "db"}}}
			test.change(spec)
			if got := Unlocked(spec); got != test.want {
				t.Errorf("Unlocked() = %t, want %t", got, test.want)
			}
		})
	}
}

// A hypervisor that takes over disks detects whether a third hypervisor has run a guest on them.
func TestSet_ClaimDetectsOtherUsers(t *testing.T) {
	source, dir := set(t, shared)
	target := New(&vmpb.VMSpec{RootDiskShared: true}, filepath.Join(dir, "root"), nil)
	third := New(&vmpb.VMSpec{RootDiskShared: true}, filepath.Join(dir, "root"), nil)
	must(t, source.Lock())
	if err := source.Unused("source/1"); !errors.Is(err, ErrUsed) || !errors.Is(err, disk.ErrLocked) {
		t.Errorf("before the disks are claimed: error = %v, want ErrUsed", err)
	}
	must(t, source.Claim("a longer name/1"))
	must(t, source.Claim("source/1"))
	must(t, source.Release())
	must(t, target.Lock())
	must(t, target.Unused("source/1")) // but it does not run the guest
	must(t, target.Unlock())
	must(t, source.Lock())
	must(t, source.Unused("source/1"))
	must(t, source.Release())
	must(t, third.Lock())
	must(t, third.Claim("third/1"))
	must(t, third.Unlock())
	for name, s := range map[string]*Set{"source": source, "target": target} {
		must(t, s.Lock())
		if err := s.Unused("source/1"); !errors.Is(err, ErrUsed) {
			t.Errorf("%s: error = %v, want ErrUsed", name, err)
		}
		must(t, s.Unlock())
	}
}
