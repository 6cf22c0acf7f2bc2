// Package preparation has the disks of a virtual machine locked and complete.
package preparation

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/controller"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disk"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disks"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	"github.com/millwright-dev/millwright/internal/vm/image"
	"github.com/millwright-dev/millwright/internal/vm/image/architecture"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// Preparation is what disks are prepared with. All fields are required.
type Preparation struct {
	// Spec is the virtual machine.
	Spec *vmpb.VMSpec
	// Run is the folder for files that live as long as the Pod.
	Run string
	// WriteDisk creates a disk from an image: image.WriteDisk.
	WriteDisk func(context.Context, image.Source, image.Target, image.Options) error
	// Report changes what the controller is told: controller.Reporter.Update.
	Report func(func(*controller.Report))
	// LockRetry is the time between two attempts to lock the disks, and LockLimit how long that is tried: a process that is
	// about to end may still hold the lock.
	LockRetry, LockLimit time.Duration
}

// Locked tries until the disks are unlocked, or LockLimit is over. An earlier run of this virtual machine
// may be about to end. Errors: disk.ErrLocked, qemu.ErrDiskLocked, the context's cause, and others of try, which end it.
func (p Preparation) Locked(ctx context.Context, try func() error) error {
	late := time.After(p.LockLimit)
	for {
		err := try()
		if !errors.Is(err, disk.ErrLocked) && !errors.Is(err, qemu.ErrDiskLocked) {
			return err
		}
		p.Report(func(r *controller.Report) {
			r.State, r.Cause = vmpb.ReportStateRequest_STATE_WAITING, vmpb.ReportStateRequest_CAUSE_DISK_LOCKED
			r.Message = "Another process holds the lock of the disk. Waiting for its end."
		})
		select {
		case <-time.After(p.LockRetry):
		case <-late:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Complete has the disks complete. They are created only once. It reports whether there are disks that the controller may
// not know of. Errors: disks.ErrLost, and those of WriteDisk.
func (p Preparation) Complete(ctx context.Context, of *disks.Set) (isNew bool, err error) {
	before, err := disks.Recorded(p.Run)
	if err != nil {
		return false, err
	}
	isNew, err = of.Prepare(ctx, before, func(d disks.Disk) error { return p.writeImage(ctx, d) })
	if err != nil || before {
		return isNew, err
	}
	return isNew, disks.Record(p.Run)
}

func (p Preparation) writeImage(ctx context.Context, d disks.Disk) error {
	doing := "writing the initial image"
	if d.Name != "" {
		doing = "writing the initial image of data disk " + d.Name
	}
	p.Doing(doing)
	options := p.ImageOptions(doing)
	if d.Name == "" && p.Spec.GetKernelBoot() == nil {
		options.Check = architecture.CheckDisk(qemu.Architecture)
	}
	source := image.Source{URL: d.Image.GetUrl(), Checksum: d.Image.GetChecksum(), Format: d.Image.GetFormat()}
	if d.IsDevice() {
		return p.WriteDisk(ctx, source, image.Target{Path: d.Path, Bytes: int64(d.Bytes), Scratch: p.Run}, options)
	}
	err := p.WriteDisk(ctx, source, image.Target{Path: d.Path, Bytes: int64(d.Size())}, options)
	if err != nil {
		return err
	}
	return d.Grow()
}

// Doing reports what is prepared.
func (p Preparation) Doing(message string) {
	p.Report(func(r *controller.Report) {
		r.State, r.Message = vmpb.ReportStateRequest_STATE_PREPARING, message
	})
}

// ImageOptions report the progress of a download.
func (p Preparation) ImageOptions(doing string) image.Options {
	return image.Options{
		Progress: func(done, total int64) {
			p.Report(func(r *controller.Report) {
				r.Message, r.DoneBytes, r.TotalBytes = doing, uint64(done), uint64(total)
			})
		},
		Trouble: func(err error) { p.Doing(fmt.Sprintf("%v; trying again", err)) },
	}
}
