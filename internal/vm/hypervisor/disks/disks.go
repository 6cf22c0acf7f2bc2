// Package disks keeps the disks of one VM: the root disk, and then the data disks in the order of the guest's bus.
package disks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disk"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// MaxBytes is the size of the largest disk. It is above QEMU's limit, and prevents overflows.
const MaxBytes = 1 << 52

// ErrLost means that a disk is gone which was complete before. It is never created again: the guest would start without
// its data.
var ErrLost = errors.New("it is gone, although this virtual machine has had one")

// Disk is one of the disks of a VM.
type Disk struct {
	disk.Disk
	// Name of a data disk. Empty: the root disk.
	Name string
	// Had reports whether the disk was complete before.
	Had bool
	// Image is the content of a new disk. Nil: it is blank.
	Image *vmpb.InitialImage
	// Device reports whether the disk must be a block device. A file in its stead would be a disk that is nowhere.
	Device bool
	// Boots reports whether the firmware starts the guest from an image on the disk, which is therefore never blank again.
	Boots bool
}

// Named returns an error about the disk with its name; nil if err is nil.
func (d Disk) Named(err error) error {
	switch {
	case err == nil:
		return nil
	case d.Name != "":
		return fmt.Errorf("data disk %s: %w", d.Name, err)
	case errors.Is(err, ErrLost):
		return fmt.Errorf("root disk: %w", err)
	}
	return err
}

// Set is all disks of a VM. It is used by one goroutine after the other, but for Sizes.
type Set struct {
	all    []Disk
	locks  []*disk.Lock
	shared bool
}

// New returns the disks of a specification. root is the file of the root disk, and data those of the data disks, by name.
func New(spec *vmpb.VMSpec, root string, data map[string]string) *Set {
	first := Disk{
		Disk: disk.Disk{Path: root, Bytes: spec.GetRootDiskBytes()}, Had: spec.GetRootDiskExists(),
		Boots: spec.GetInitialImage() != nil && spec.GetKernelBoot() == nil, Device: mustBeDevice(spec.GetRootDiskPath()),
	}
	if spec.GetMode() == vmpb.VMSpec_SM_PREPARE_IMAGE {
		first.Image = spec.GetInitialImage()
	}
	all := []Disk{first}
	for _, further := range spec.GetDataDisks() {
		all = append(all, Disk{
			Disk: disk.Disk{Path: data[further.GetName()], Bytes: further.GetBytes()},
			Name: further.GetName(), Had: further.GetExists(), Image: further.GetInitialImage(),
			Device: mustBeDevice(further.GetPath()),
		})
	}
	return &Set{all: all, shared: spec.GetRootDiskShared()}
}

// mustBeDevice reports whether a path of a specification is that of a device.
func mustBeDevice(path string) bool { return strings.HasPrefix(path, "/dev/") }

// Lock locks all disks, or none: two hypervisors that have each a part would wait for each other. It comes before the
// first write to a disk or beside it. Errors: disk.ErrLocked, disk.ErrNotDevice.
func (s *Set) Lock() error {
	for _, d := range s.all {
		lock, err := d.lock()
		if err != nil {
			return errors.Join(d.Named(err), s.Unlock())
		}
		s.locks = append(s.locks, lock)
	}
	return nil
}

func (d Disk) lock() (*disk.Lock, error) {
	if d.Device && !d.IsDevice() {
		return nil, fmt.Errorf("%s: %w", d.Path, disk.ErrNotDevice)
	}
	return disk.Acquire(d.Path)
}

// Unlock releases what Lock has locked.
func (s *Set) Unlock() error {
	var problems []error
	for _, lock := range s.locks {
		problems = append(problems, lock.Release())
	}
	s.locks = nil
	return errors.Join(problems...)
}

// Locks returns what Lock has locked.
func (s *Set) Locks() []*disk.Lock { return s.locks }

// Prepare has the disks complete. before reports whether an earlier run of this Pod had that; write writes the image of a
// new disk. It reports whether there are disks that the controller may not know of. Errors: ErrLost, and those of write.
func (s *Set) Prepare(ctx context.Context, before bool, write func(Disk) error) (isNew bool, err error) {
	for _, d := range s.all {
		// Also if the disk is there: a report may have been lost before.
		if d.Name == "" {
			isNew = isNew || d.Image != nil
		} else {
			isNew = isNew || !d.Had
		}
		ensure := d.ensure
		if d.IsDevice() {
			ensure = func(before bool, write func(Disk) error) error { return d.ensureDevice(ctx, before, write) }
		}
		if err := ensure(before, write); err != nil {
			return isNew, d.Named(err)
		}
	}
	return isNew, nil
}

// ensure never writes to an existing disk: it is complete, and may have run.
func (d Disk) ensure(before bool, write func(Disk) error) error {
	exists, err := d.Exists()
	switch {
	case err != nil:
		return err
	case exists:
		return d.Grow()
	case before || d.Had:
		return ErrLost
	case d.Image != nil:
		return write(d)
	}
	return d.MakeBlank()
}

// ensureDevice never writes to a device that has data: it is complete, and may have run. One that is blank may be a disk to
// which the guest has written nothing.
func (d Disk) ensureDevice(ctx context.Context, before bool, write func(Disk) error) error {
	content, err := d.Content()
	complete := before || d.Had
	switch {
	case err != nil:
		return err
	case content == disk.Data:
		return nil
	case complete && (content == disk.Begun || d.Boots):
		return ErrLost
	case complete:
		return nil
	case d.Image != nil:
		return write(d)
	case content == disk.Begun:
		return d.Clear(ctx)
	}
	return d.fits()
}

// fits returns nil if a device has the requested size. Errors: disk.ErrTooSmall.
func (d Disk) fits() error {
	length, err := d.Length()
	if err == nil && length < d.Bytes {
		err = fmt.Errorf("%w: it has %d bytes, the disk %d", disk.ErrTooSmall, length, d.Bytes)
	}
	return err
}

// MustBeKnown reports whether the controller has to know, before the guest runs, that the disks are complete: one is on a
// device and had an image, which a guest may have made blank again.
func (s *Set) MustBeKnown() bool {
	return slices.ContainsFunc(s.all, func(d Disk) bool { return d.Image != nil && !d.Had && d.IsDevice() })
}

// MakeBlank replaces the disks by empty ones of these sizes, which are those of the same disks in the same order. A device
// may be larger, and keeps its content: that of the other disk replaces all of it.
func (s *Set) MakeBlank(sizes []*vmpb.DiskSize) error {
	same := slices.EqualFunc(s.all, sizes, func(d Disk, size *vmpb.DiskSize) bool { return d.Name == size.GetName() })
	if !same {
		return errors.New("there are sizes of other disks")
	}
	for i, d := range s.all {
		d.Bytes = sizes[i].GetBytes()
		if d.Bytes > MaxBytes {
			return d.Named(fmt.Errorf("a disk of %d bytes is larger than 4 PiB", d.Bytes))
		}
		prepare := d.Disk.MakeBlank
		if d.IsDevice() {
			prepare = d.fits
		}
		if err := prepare(); err != nil {
			return d.Named(err)
		}
	}
	return nil
}

// Attach gives the disks, which are there, to the machine that is to be started. The machine of shared ones inherits no lock, as
// that could not be let go before its end; and it does not use its host's cache, which no other host sees.
func (s *Set) Attach(to *qemu.Disks) error {
	to.Data, to.Locks = nil, nil
	for _, lock := range s.locks {
		if device := lock.Device(); device != nil && !s.shared {
			to.Locks = append(to.Locks, device)
		}
	}
	for _, d := range s.all {
		at, err := qemu.DiskAt(d.Path)
		at.Direct = s.shared
		switch {
		case err != nil:
			return d.Named(err)
		case d.Name == "":
			to.Root = at
		default:
			to.Data = append(to.Data, qemu.DataDisk{Disk: at, Serial: d.Name})
		}
	}
	return nil
}

// Sizes returns the sizes of the disks, which are complete. With an error it returns those that are known.
func (s *Set) Sizes() ([]*vmpb.DiskSize, error) {
	var sizes []*vmpb.DiskSize
	var problems []error
	for _, d := range s.all {
		length, err := d.Length()
		if err != nil {
			problems = append(problems, fmt.Errorf("looking for the size of a disk: %w", err))
			continue
		}
		sizes = append(sizes, &vmpb.DiskSize{Name: d.Name, Bytes: length})
	}
	return sizes, errors.Join(problems...)
}

// Grow enlarges disks in files, which are there, to the wanted sizes. Those that are as large stay as they are, and so do devices.
func (s *Set) Grow(wanted []*vmpb.DiskSize) error {
	has, err := s.Sizes()
	if err != nil {
		return err
	}
	for _, size := range Growing(has, wanted) {
		i := slices.IndexFunc(s.all, func(d Disk) bool { return d.Name == size.GetName() })
		if d := s.all[i]; !d.IsDevice() {
			d.Bytes = size.GetBytes()
			if err := d.Disk.Grow(); err != nil {
				return d.Named(err)
			}
		}
	}
	return nil
}

// Growing returns those of the wanted sizes that are larger than what disks have, and possible.
func Growing(has, wanted []*vmpb.DiskSize) []*vmpb.DiskSize {
	var growing []*vmpb.DiskSize
	for _, d := range has {
		for _, size := range wanted {
			if size.GetName() == d.GetName() && size.GetBytes() > d.GetBytes() && size.GetBytes() <= MaxBytes {
				growing = append(growing, size)
			}
		}
	}
	return growing
}
