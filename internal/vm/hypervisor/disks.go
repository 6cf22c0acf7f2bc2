package hypervisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/controller"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disk"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	"github.com/millwright-dev/millwright/internal/vm/image"
	"github.com/millwright-dev/millwright/internal/vm/image/architecture"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// vmDisk is one of the VM's disks.
type vmDisk struct {
	disk.Disk
	// name of a data disk. Empty: the root disk.
	name string
	// exists reports whether the disk was complete before.
	exists bool
	// image is the content of a new disk. Nil: it is blank.
	image *vmpb.InitialImage
}

// disks returns the root disk, and then the data disks.
func (l *life) disks() []vmDisk {
	spec, paths := l.config.Spec, l.config.Paths
	root := vmDisk{Disk: disk.Disk{Path: paths.RootDisk, Bytes: spec.GetRootDiskBytes()}, exists: spec.GetRootDiskExists()}
	if spec.GetMode() == vmpb.VMSpec_SM_PREPARE_IMAGE {
		root.image = spec.GetInitialImage()
	}
	all := []vmDisk{root}
	for _, data := range spec.GetDataDisks() {
		all = append(all, vmDisk{
			Disk: disk.Disk{Path: paths.DataDisks[data.GetName()], Bytes: data.GetBytes()},
			name: data.GetName(), exists: data.GetExists(), image: data.GetInitialImage(),
		})
	}
	return all
}

// of names the disk in an error about it.
func (d vmDisk) of(err error) error {
	if err == nil || d.name == "" {
		return err
	}
	return fmt.Errorf("data disk %s: %w", d.name, err)
}

// lost is the end of a hypervisor whose disk is gone.
func (d vmDisk) lost() error {
	if d.name == "" {
		return errDiskLost
	}
	return &ending{vmpb.EndDiskLost, "it is gone, although this virtual machine has had one"} // of names it
}

// lockDisk comes before the first write to a disk or beside it.
func (l *life) lockDisk(ctx context.Context) error {
	return l.retryLocked(ctx, l.lockAll)
}

// lockAll locks all disks, or none: two hypervisors that have each a part would wait for each other.
func (l *life) lockAll() error {
	for _, d := range l.disks() {
		lock, err := disk.Acquire(d.Path)
		if err != nil {
			return errors.Join(d.of(err), l.unlock())
		}
		l.locks = append(l.locks, lock)
	}
	return nil
}

func (l *life) unlock() error {
	var problems []error
	for _, lock := range l.locks {
		problems = append(problems, lock.Release())
	}
	l.locks = nil
	return errors.Join(problems...)
}

// retryLocked tries until the disk is unlocked or LockLimit is over. An earlier run of this VM
// may be about to end.
func (l *life) retryLocked(ctx context.Context, try func() error) error {
	late := time.After(l.config.Timing.LockLimit)
	for {
		err := try()
		if !errors.Is(err, disk.ErrLocked) && !errors.Is(err, qemu.ErrDiskLocked) {
			return err
		}
		l.reporter.Update(func(r *controller.Report) {
			r.State, r.Cause = vmpb.ReportStateRequest_STATE_WAITING, vmpb.ReportStateRequest_CAUSE_DISK_LOCKED
			r.Message = "Another process holds the lock of the disk. Waiting for its end."
		})
		select {
		case <-time.After(l.config.Timing.LockRetry):
		case <-late:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// prepareDisk has the disks complete. They are created only once.
func (l *life) prepareDisk(ctx context.Context) error {
	before, err := l.hadDisk()
	if err != nil {
		return err
	}
	for _, d := range l.disks() {
		if err := l.ensureDisk(ctx, d, before); err != nil {
			return d.of(err)
		}
	}
	if before {
		return nil
	}
	return l.recordDisk()
}

// ensureDisk never writes to an existing disk: it is complete, and may have run. A disk that
// should exist is not created again: the guest would start without its data.
func (l *life) ensureDisk(ctx context.Context, d vmDisk, before bool) error {
	exists, err := d.Exists()
	if err != nil {
		return err
	}
	// Also if the disk is there: a report may have been lost before.
	isNew := d.image != nil
	if d.name != "" {
		isNew = !d.exists
	}
	l.newDisks = l.newDisks || isNew
	switch {
	case exists:
		return d.Grow()
	case before || d.exists:
		return d.lost()
	case d.image != nil:
		return l.writeImage(ctx, d)
	default:
		return d.MakeBlank()
	}
}

// diskRecord is a file in the run folder. It exists if an earlier run of this Pod had the disk
// complete: the specification is older than that, and says nothing about it.
const diskRecord = "disk-complete"

func (l *life) hadDisk() (bool, error) {
	_, err := os.Stat(filepath.Join(l.config.Paths.Run, diskRecord))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("looking for the record of the disk: %w", err)
	}
	return err == nil, nil
}

func (l *life) recordDisk() error {
	record, err := disk.CreatePartial(filepath.Join(l.config.Paths.Run, diskRecord), 0o600)
	if err == nil {
		defer record.Discard()
		err = record.Commit()
	}
	if err != nil {
		return fmt.Errorf("recording that the disk is complete: %w", err)
	}
	return nil
}

func (l *life) writeImage(ctx context.Context, d vmDisk) error {
	doing := "writing the initial image"
	if d.name != "" {
		doing = "writing the initial image of data disk " + d.name
	}
	l.reportState(vmpb.ReportStateRequest_STATE_PREPARING, doing)
	options := l.imageOptions(doing)
	if d.name == "" && l.config.Spec.GetKernelBoot() == nil {
		options.Check = architecture.CheckDisk(qemu.Architecture)
	}
	err := l.config.WriteDisk(ctx,
		image.Source{URL: d.image.GetUrl(), Checksum: d.image.GetChecksum(), Format: d.image.GetFormat()},
		image.Target{Path: d.Path, Bytes: int64(d.Size())}, options)
	if err != nil {
		return err
	}
	return d.Grow()
}

// attachDisks gives the disks to the machine that is to be started.
func (l *life) attachDisks() error {
	disks := &l.guestConfig.Disks
	disks.Data = nil
	for _, d := range l.disks() {
		at, err := qemu.DiskAt(d.Path)
		if err != nil {
			return d.of(err)
		}
		if d.name == "" {
			disks.Root = at
		} else {
			disks.Data = append(disks.Data, qemu.DataDisk{Disk: at, Serial: d.name})
		}
	}
	return nil
}

// diskSizes returns the sizes of the disks, which are complete.
func (l *life) diskSizes() *controller.Disks {
	if l.sizes != nil {
		return l.sizes
	}
	sizes := controller.Disks{}
	for _, d := range l.disks() {
		info, err := os.Stat(d.Path)
		if err != nil {
			l.log.Warn("the size of a disk is not known", "path", d.Path, "error", err)
			continue
		}
		sizes = append(sizes, &vmpb.DiskSize{Name: d.name, Bytes: uint64(info.Size())})
	}
	l.sizes = &sizes
	return l.sizes
}

// growDisks makes disks larger, as the controller wants, and never smaller. What does not succeed is not tried again:
// the next start of the VM does it.
func (l *life) growDisks(ctx context.Context) {
	if l.lease == nil || !l.leaving.idle() {
		return
	}
	authorization, _ := l.lease.Current()
	wanted := authorization.Grow
	if wanted == nil || wanted == l.grown {
		return
	}
	l.grown = wanted
	for _, has := range *l.diskSizes() {
		for _, size := range *wanted {
			if size.GetName() != has.GetName() || size.GetBytes() <= has.GetBytes() || size.GetBytes() > maxDiskBytes {
				continue
			}
			err := l.machine.Grow(ctx, size.GetName(), size.GetBytes())
			l.log.Info("growing a disk", "disk", size.GetName(), "bytes", size.GetBytes(), "error", err)
		}
	}
	l.sizes = nil // measured when they are reported
}
