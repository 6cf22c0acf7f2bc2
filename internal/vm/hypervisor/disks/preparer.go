package disks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/controller"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disk"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	"github.com/millwright-dev/millwright/internal/vm/image"
	"github.com/millwright-dev/millwright/internal/vm/image/architecture"
	"github.com/millwright-dev/millwright/internal/vm/image/firmware"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// Preparer locks and prepares the disks of a virtual machine. All fields are required.
type Preparer struct {
	// Spec is the virtual machine.
	Spec *vmpb.VMSpec
	// Run is the directory for files that live as long as the Pod.
	Run string
	// WriteDisk creates a disk from an image. It is image.WriteDisk.
	WriteDisk func(context.Context, image.Source, image.Target, image.Options) error
	// Report changes the report to the controller. It is controller.Reporter.Update.
	Report func(func(*controller.Report))
	// LockRetry is the time between two attempts to lock the disks. LockLimit is how long to retry, because a
	// process that is about to terminate may still hold the lock.
	LockRetry, LockLimit time.Duration
}

// AwaitLock calls lock until it succeeds, fails for a reason other than a lock of another process, or LockLimit
// has passed. An earlier run of this virtual machine may be about to terminate. Errors: disk.ErrLocked,
// qemu.ErrDiskLocked, the context's cause, and other errors of lock, which are returned immediately.
func (p Preparer) AwaitLock(ctx context.Context, lock func() error) error {
	late := time.After(p.LockLimit)
	for {
		err := lock()
		if !errors.Is(err, disk.ErrLocked) && !errors.Is(err, qemu.ErrDiskLocked) {
			return err
		}
		p.Report(func(r *controller.Report) {
			r.State, r.Cause = vmpb.ReportStateRequest_STATE_WAITING, vmpb.ReportStateRequest_CAUSE_DISK_LOCKED
			r.Message = "Another process holds the lock of the disk. Waiting for it to terminate."
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

// Prepare prepares the disks of a set. Disks are created only once. Prepare returns true if there are disks that
// the controller may not know about. Errors: ErrLost, and those of WriteDisk.
func (p Preparer) Prepare(ctx context.Context, set *Set) (isNew bool, err error) {
	before, err := Recorded(p.Run)
	if err != nil {
		return false, err
	}
	isNew, err = set.Prepare(ctx, before, func(d Disk) error { return p.writeImage(ctx, d) })
	if err != nil || before {
		return isNew, err
	}
	return isNew, Record(p.Run)
}

func (p Preparer) writeImage(ctx context.Context, d Disk) error {
	doing := "writing the initial image"
	if d.Name != "" {
		doing = "writing the initial image of data disk " + d.Name
	}
	p.ReportProgress(doing)
	options := p.ImageOptions(doing)
	if d.Name == "" && p.Spec.GetKernelBoot() == nil {
		options.Check = p.checkRoot
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

// checkRoot returns why the guest certainly cannot boot from a disk, or "".
func (p Preparer) checkRoot(disk io.ReaderAt) string {
	check := firmware.CheckBIOS
	if p.Spec.GetFirmware() == vmpb.VMSpec_FIRMWARE_UEFI {
		check = firmware.CheckUEFI
	}
	return cmp.Or(architecture.CheckDisk(qemu.Architecture)(disk), check(disk))
}

// ReportProgress reports what is being prepared.
func (p Preparer) ReportProgress(message string) {
	p.Report(func(r *controller.Report) {
		r.State, r.Message = vmpb.ReportStateRequest_STATE_PREPARING, message
	})
}

// ImageOptions returns options that report the progress of a download.
func (p Preparer) ImageOptions(doing string) image.Options {
	return image.Options{
		Progress: func(done, total int64) {
			p.Report(func(r *controller.Report) {
				r.Message, r.DoneBytes, r.TotalBytes = doing, uint64(done), uint64(total)
			})
		},
		OnRetry: func(err error) { p.ReportProgress(fmt.Sprintf("%v; retrying", err)) },
	}
}
