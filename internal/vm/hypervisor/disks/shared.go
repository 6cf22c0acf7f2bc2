package disks

import (
	"errors"
	"fmt"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disk"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// If other hosts have attached the disks, too, a live migration does not copy them; it transfers the permission to
// write to them. The source releases its locks when its QEMU has written everything and no longer writes. Only
// then does it signal the target. The target acquires the locks before it asks for the authority. Two hypervisors
// therefore never hold the locks at the same time, and the one that gets the VM holds the locks or waits for them.
//
// In between, a third hypervisor may have held the locks and run a guest: with storage locking it may start even
// if the controller does not respond. The memory of the migrated guest would then no longer match the disks. The
// hypervisor that runs a guest therefore writes its name into the lock of the root disk. The hypervisor that takes
// over the disks checks that this name is still that of the source. With leases that expire, no guest runs without
// the authority. Devices require such leases, because their locks have no content.

// ErrUsed means that another hypervisor has used the disks since they were released.
var ErrUsed = fmt.Errorf("another hypervisor has used the disks: %w", disk.ErrLocked)

// Shared reports whether other hosts have the disks attached, too.
func (s *Set) Shared() bool { return s.shared }

// Release unlocks shared disks for another hypervisor. The machine must not write to them any more. Release has no
// effect on other disks.
func (s *Set) Release() error {
	if !s.shared {
		return nil
	}
	return s.Unlock()
}

// Claim records which run uses shared disks. The disks must be locked.
func (s *Set) Claim(by string) error {
	if !s.shared || s.locks[0].Device() != nil {
		return nil
	}
	if err := s.locks[0].Write(by); err != nil {
		return fmt.Errorf("claiming the disks: %w", err)
	}
	return nil
}

// Unused returns nil if no run other than the given one has claimed shared disks, and ErrUsed otherwise. The disks
// must be locked.
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

// Locked reports whether the disks are locked.
func (s *Set) Locked() bool { return len(s.locks) == len(s.all) }

// Expect prepares the disks for a guest that will be received with disks of these sizes; see MakeBlank. Shared
// disks must exist. Errors: ErrLost, disk.ErrNotDevice, and those of MakeBlank.
func (s *Set) Expect(sizes []*vmpb.DiskSize) error {
	if !s.shared {
		return s.MakeBlank(sizes)
	}
	if len(sizes) > 0 {
		return errors.New("unexpected sizes: shared disks are not copied")
	}
	for _, d := range s.all {
		if err := d.checkExists(); err != nil {
			return d.Named(err)
		}
	}
	return nil
}

// checkExists returns nil unless a disk that must exist is missing.
func (d Disk) checkExists() error {
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

// Unlocked reports whether a specification has shared disks that neither a lock nor a lease protects from other
// hosts. The lock of a device is valid on only one host.
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
