// Package disks manages the disks of one VM: the root disk, followed by the data disks in the order of the guest's
// bus.
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

// MaxBytes is the maximum size of a disk. It is above QEMU's limit and prevents overflows.
const MaxBytes = 1 << 52

// ErrLost means that a disk is missing although it was complete before. It is not created again, because the guest
// would then start without its data.
var ErrLost = errors.New("the disk is missing, although this virtual machine had one before")

// Disk is one of the disks of a VM.
type Disk struct {
	disk.Disk
	// Name is the name of a data disk. It is empty for the root disk.
	Name string
	// Had reports whether the disk was complete before.
	Had bool
	// Image is the content of a new disk. If nil, the disk is blank.
	Image *vmpb.InitialImage
	// Device reports whether the disk must be a block device. A file in its place would be lost with the Pod.
	Device bool
	// Boots reports whether the firmware boots the guest from an image on the disk. Such a disk must not become
	// blank again.
	Boots bool
}

// Named adds the name of the disk to an error. It returns nil if err is nil.
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

// Set contains all disks of a VM. Except for Sizes, its methods must not be called concurrently.
type Set struct {
	all    []Disk
	locks  []*disk.Lock
	shared bool
}

// New returns the disks of a specification. root is the file of the root disk, and data has the files of the data
// disks by name.
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

// mustBeDevice reports whether a path in a specification is the path of a device.
func mustBeDevice(path string) bool { return strings.HasPrefix(path, "/dev/") }

// Lock locks all disks or none, because two hypervisors that each hold some of the locks would wait for each
// other. Call it before writing anything to a disk or next to it. Errors: disk.ErrLocked, disk.ErrNotDevice.
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

// Unlock releases the locks.
func (s *Set) Unlock() error {
	var problems []error
	for _, lock := range s.locks {
		problems = append(problems, lock.Release())
	}
	s.locks = nil
	return errors.Join(problems...)
}

// Locks returns the locks that Lock has acquired.
func (s *Set) Locks() []*disk.Lock { return s.locks }

// Prepare prepares the disks. The parameter before reports whether an earlier run of this Pod completed them. The
// function write writes the image of a new disk. Prepare returns true if there are disks that the controller may
// not know about. Errors: ErrLost, and those of write.
func (s *Set) Prepare(ctx context.Context, before bool, write func(Disk) error) (isNew bool, err error) {
	for _, d := range s.all {
		// This includes existing disks, because an earlier report may have been lost.
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

// ensure never writes to an existing disk: it is complete, and a guest may have used it.
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

// ensureDevice never writes to a device with data: it is complete, and a guest may have used it. A blank device
// may be a disk to which the guest has not written yet.
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

// fits returns nil if a device is at least as large as requested, and disk.ErrTooSmall otherwise.
func (d Disk) fits() error {
	length, err := d.Length()
	if err == nil && length < d.Bytes {
		err = fmt.Errorf("%w: the device has %d bytes, the disk needs %d", disk.ErrTooSmall, length, d.Bytes)
	}
	return err
}

// MustBeKnown reports whether the controller must know that the disks are complete before the guest runs. That
// applies to a device with an image, because a guest may make it blank again.
func (s *Set) MustBeKnown() bool {
	return slices.ContainsFunc(s.all, func(d Disk) bool { return d.Image != nil && !d.Had && d.IsDevice() })
}

// MakeBlank replaces the disks with empty disks of the given sizes, which must be in the order of the disks. A
// device may be larger than requested. It keeps its content until the content of the source's disk replaces it.
func (s *Set) MakeBlank(sizes []*vmpb.DiskSize) error {
	same := slices.EqualFunc(s.all, sizes, func(d Disk, size *vmpb.DiskSize) bool { return d.Name == size.GetName() })
	if !same {
		return errors.New("the sizes do not match the disks")
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

// Attach adds the disks, which must exist, to the description of a machine. For shared disks, the machine does not
// inherit the locks, because they could not be released before its process exits. It also bypasses the host's page
// cache, which other hosts cannot see.
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

// Sizes returns the sizes of the disks, which must be complete. If it returns an error, it also returns the sizes
// that are known.
func (s *Set) Sizes() ([]*vmpb.DiskSize, error) {
	var sizes []*vmpb.DiskSize
	var problems []error
	for _, d := range s.all {
		length, err := d.Length()
		if err != nil {
			problems = append(problems, fmt.Errorf("determining the size of a disk: %w", err))
			continue
		}
		sizes = append(sizes, &vmpb.DiskSize{Name: d.Name, Bytes: length})
	}
	return sizes, errors.Join(problems...)
}

// Grow enlarges existing disk files to the desired sizes. It does not change larger files or devices.
func (s *Set) Grow(desired []*vmpb.DiskSize) error {
	has, err := s.Sizes()
	if err != nil {
		return err
	}
	for _, size := range Growing(has, desired) {
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

// Growing returns the desired sizes that are larger than the current sizes and are possible.
func Growing(has, desired []*vmpb.DiskSize) []*vmpb.DiskSize {
	var growing []*vmpb.DiskSize
	for _, d := range has {
		for _, size := range desired {
			if size.GetName() == d.GetName() && size.GetBytes() > d.GetBytes() && size.GetBytes() <= MaxBytes {
				growing = append(growing, size)
			}
		}
	}
	return growing
}
