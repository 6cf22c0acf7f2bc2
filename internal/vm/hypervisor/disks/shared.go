package disks

import (
	"errors"
	"fmt"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disk"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// Disks that other hosts have attached, too, do not travel in a live migration; what goes over is the right to write to them.
// The source lets its locks go when its QEMU has written all and writes no more, and only then tells the target, which
// takes them before it asks for the authority. So at no time two have them, and whoever gets the VM has them or waits.
//
// In between a third hypervisor may have had them, and run a guest: with storage locking it may start without an answer of the
// controller. The memory of the other guest does not fit the disks then. So who runs a guest writes that into the lock of the root
// disk, and who takes the disks over looks whether it is still the source. With leases that expire nobody runs a guest
// without the authority, which is why devices, whose locks have no room for that, need them.

// ErrUsed means that another hypervisor has had the disks since they were let go.
var ErrUsed = fmt.Errorf("another hypervisor has had the disks: %w", disk.ErrLocked)

// Shared reports whether other hosts have the disks attached, too.
func (s *Set) Shared() bool { return s.shared }

// LetGo unlocks shared disks, whose machine does not write to them any more, for another hypervisor. It does nothing to others.
func (s *Set) LetGo() error {
	if !s.shared {
		return nil
	}
	return s.Unlock()
}

// Claim writes who runs a guest on shared disks, which are locked.
func (s *Set) Claim(by string) error {
	if !s.shared || s.locks[0].Device() != nil {
		return nil
	}
	if err := s.locks[0].Write(by); err != nil {
		return fmt.Errorf("claiming the disks: %w", err)
	}
	return nil
}

// Unused returns nil if nobody has run a guest on shared disks, which are locked, since that one did. Errors: ErrUsed.
func (s *Set) Unused(since string) error {
	if !s.shared || s.locks[0].Device() != nil {
		return nil
	}
	by, err := s.locks[0].Read()
	if err == nil && by != since {
		err = fmt.Errorf("%w (%q instead of %q)", ErrUsed, by, since)
	}
	return err
}

// Locked reports whether Lock has locked the disks, and nothing has unlocked them.
func (s *Set) Locked() bool { return len(s.locks) == len(s.all) }

// Expect has the disks ready for a guest that arrives with its disks, which have these sizes: see MakeBlank. Shared disks must
// be there. Errors: ErrLost, disk.ErrNotDevice, and those of MakeBlank.
func (s *Set) Expect(sizes []*vmpb.DiskSize) error {
	if !s.shared {
		return s.MakeBlank(sizes)
	}
	if len(sizes) > 0 {
		return errors.New("there are sizes of disks that do not travel")
	}
	for _, d := range s.all {
		if err := d.there(); err != nil {
			return d.Named(err)
		}
	}
	return nil
}

// there returns nil if a disk that must exist does.
func (d Disk) there() error {
	if d.IsDevice() {
		return nil
	}
	if d.Device {
		return fmt.Errorf("%s: %w", d.Path, disk.ErrNotDevice)
	}
	exists, err := d.Exists()
	if err == nil && !exists {
		err = ErrLost
	}
	return err
}

// Unlocked returns whether a specification has shared disks of which no lock keeps another host out, although nothing else
// does: the lock of a device is that of one host.
func Unlocked(spec *vmpb.VMSpec) bool {
	if !spec.GetRootDiskShared() || spec.GetLeaseMode() == vmpb.LeaseMode_LM_FULL_LEASES {
		return false
	}
	unlocked := mustBeDevice(spec.GetRootDiskPath())
	for _, data := range spec.GetDataDisks() {
		unlocked = unlocked || mustBeDevice(data.GetPath())
	}
	return unlocked
}
