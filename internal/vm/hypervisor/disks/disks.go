// Package disks keeps the disks of one VM: the root disk, and then the data disks in the order of the guest's bus.
package disks

import (
	"errors"
	"fmt"
	"os"
	"slices"

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

// Set is all disks of a VM. It is used by one goroutine, but for Sizes.
type Set struct {
	all   []Disk
	locks []*disk.Lock
}

// New returns the disks of a specification. root is the file of the root disk, and data those of the data disks, by name.
func New(spec *vmpb.VMSpec, root string, data map[string]string) *Set {
	first := Disk{Disk: disk.Disk{Path: root, Bytes: spec.GetRootDiskBytes()}, Had: spec.GetRootDiskExists()}
	if spec.GetMode() == vmpb.VMSpec_SM_PREPARE_IMAGE {
		first.Image = spec.GetInitialImage()
	}
	all := []Disk{first}
	for _, further := range spec.GetDataDisks() {
		all = append(all, Disk{
			Disk: disk.Disk{Path: data[further.GetName()], Bytes: further.GetBytes()},
			Name: further.GetName(), Had: further.GetExists(), Image: further.GetInitialImage(),
		})
	}
	return &Set{all: all}
}

// Lock locks all disks, or none: two hypervisors that have each a part would wait for each other. It comes before the
// first write to a disk or beside it. Errors: disk.ErrLocked.
func (s *Set) Lock() error {
	for _, d := range s.all {
		lock, err := disk.Acquire(d.Path)
		if err != nil {
			return errors.Join(d.Named(err), s.Unlock())
		}
		s.locks = append(s.locks, lock)
	}
	return nil
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

// Prepare has the disks complete. before reports whether an earlier run of this Pod had that; write writes the image of a
// new disk. It reports whether there are disks that the controller may not know of. Errors: ErrLost, and those of write.
func (s *Set) Prepare(before bool, write func(Disk) error) (isNew bool, err error) {
	for _, d := range s.all {
		// Also if the disk is there: a report may have been lost before.
		if d.Name == "" {
			isNew = isNew || d.Image != nil
		} else {
			isNew = isNew || !d.Had
		}
		if err := d.ensure(before, write); err != nil {
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

// MakeBlank replaces the disks by empty ones of these sizes, which are those of the same disks in the same order.
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
		if err := d.MakeBlank(); err != nil {
			return d.Named(err)
		}
	}
	return nil
}

// Attach gives the disks, which are there, to the machine that is to be started.
func (s *Set) Attach(to *qemu.Disks) error {
	to.Data = nil
	for _, d := range s.all {
		at, err := qemu.DiskAt(d.Path)
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
		info, err := os.Stat(d.Path)
		if err != nil {
			problems = append(problems, fmt.Errorf("looking for the size of a disk: %w", err))
			continue
		}
		sizes = append(sizes, &vmpb.DiskSize{Name: d.Name, Bytes: uint64(info.Size())})
	}
	return sizes, errors.Join(problems...)
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
