package hypervisor

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

// lockDisk comes before the first write to a disk or beside it.
func (l *life) lockDisk(ctx context.Context) error { return l.retryLocked(ctx, l.disks.Lock) }

// lockOwn locks the disks of a target. Shared ones are the source's until it lets them go.
func (l *life) lockOwn(ctx context.Context) error {
	if l.disks.Shared() {
		return nil
	}
	return l.lockDisk(ctx)
}

// claimDisks says that this run is the one that runs a guest on shared disks.
func (l *life) claimDisks(context.Context) error {
	l.claimed = claimOf(l.us)
	return l.disks.Claim(l.claimed)
}

// claimOf names a run in the claim of disks.
func claimOf(us *vmpb.HypervisorID) string {
	return fmt.Sprintf("%s/%d", us.GetPodName(), us.GetRunId())
}

// takeDisks locks shared disks that a source has let go.
func (l *life) takeDisks(ctx context.Context, from *vmpb.HypervisorID) error {
	err := l.lockDisk(ctx)
	if err == nil {
		err = l.disks.Unused(claimOf(from))
	}
	return err
}

// retakeDisks locks shared disks that were let go for a target, which has not got the VM. While that has one, the guest stands
// still.
func (l *life) retakeDisks() error {
	if l.disks.Locked() {
		return nil
	}
	ctx, end := context.WithCancelCause(context.Background())
	defer end(nil)
	go l.watchTermination(ctx, end)
	err := l.lockDisk(ctx)
	if err == nil {
		err = l.disks.Unused(l.claimed)
	}
	if err == nil {
		err = l.claimDisks(ctx)
	}
	return err
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
	before, err := disks.Recorded(l.config.Paths.Run)
	if err != nil {
		return err
	}
	l.newDisks, err = l.disks.Prepare(ctx, before, func(d disks.Disk) error { return l.writeImage(ctx, d) })
	if err != nil || before {
		return err
	}
	return disks.Record(l.config.Paths.Run)
}

func (l *life) writeImage(ctx context.Context, d disks.Disk) error {
	doing := "writing the initial image"
	if d.Name != "" {
		doing = "writing the initial image of data disk " + d.Name
	}
	l.reportState(vmpb.ReportStateRequest_STATE_PREPARING, doing)
	options := l.imageOptions(doing)
	if d.Name == "" && l.config.Spec.GetKernelBoot() == nil {
		options.Check = architecture.CheckDisk(qemu.Architecture)
	}
	source := image.Source{URL: d.Image.GetUrl(), Checksum: d.Image.GetChecksum(), Format: d.Image.GetFormat()}
	if d.IsDevice() {
		return l.config.WriteDisk(ctx, source, image.Target{Path: d.Path, Bytes: int64(d.Bytes), Scratch: l.config.Paths.Run}, options)
	}
	err := l.config.WriteDisk(ctx, source, image.Target{Path: d.Path, Bytes: int64(d.Size())}, options)
	if err != nil {
		return err
	}
	return d.Grow()
}

// diskSizes returns the sizes of the disks, which are complete.
func (l *life) diskSizes() *controller.Disks {
	if l.sizes != nil {
		return l.sizes
	}
	sizes, err := l.disks.Sizes()
	if err != nil {
		l.log.Warn("the size of a disk is not known", "error", err)
	}
	l.sizes = (*controller.Disks)(&sizes)
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
	for _, size := range disks.Growing(*l.diskSizes(), *wanted) {
		err := l.machine.Grow(ctx, size.GetName(), size.GetBytes())
		l.log.Info("growing a disk", "disk", size.GetName(), "bytes", size.GetBytes(), "error", err)
	}
	l.sizes = nil // measured when they are reported
}
