package hypervisor

import (
	"context"
	"fmt"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/controller"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disks"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/preparation"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// storage is where the disks of the guest are: a *disks.Set, or a *served.Disks.
type storage interface {
	Lock() error
	Unlock() error
	Attach(to *qemu.Disks) error
	Sizes() ([]*vmpb.DiskSize, error)
	// Shared reports whether both sides of a migration have the disks, and none is copied.
	Shared() bool
	// Expect has the disks ready for a guest that arrives. The sizes are those of the disks that are copied.
	Expect(sizes []*vmpb.DiskSize) error
}

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
	if l.served != nil || l.disks.Locked() {
		return nil // of disks that are served the token keeps others out
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

// preparation is what disks are prepared with.
func (l *life) preparation() preparation.Preparation {
	return preparation.Preparation{
		Spec: l.config.Spec, Run: l.config.Paths.Run, WriteDisk: l.config.WriteDisk, Report: l.reporter.Update,
		LockRetry: l.config.Timing.LockRetry, LockLimit: l.config.Timing.LockLimit,
	}
}

// lockDisk comes before the first write to a disk or beside it.
func (l *life) lockDisk(ctx context.Context) error {
	return l.preparation().Locked(ctx, l.storage.Lock)
}

// prepareDisk has the disks complete. They are created only once.
func (l *life) prepareDisk(ctx context.Context) (err error) {
	l.newDisks, err = l.preparation().Complete(ctx, l.disks)
	return err
}

// diskSizes returns the sizes of the disks, which are complete.
func (l *life) diskSizes() *controller.Disks {
	if l.sizes != nil {
		return l.sizes
	}
	sizes, err := l.storage.Sizes()
	if err != nil {
		l.log.Warn("the size of a disk is not known", "error", err)
	}
	l.sizes = (*controller.Disks)(&sizes)
	return l.sizes
}

// growDisks makes disks larger, as the controller wants, and never smaller. What does not succeed is not tried again:
// the next start of the VM does it. Disks that are served grow at their server.
func (l *life) growDisks(ctx context.Context) {
	if l.served != nil || l.lease == nil || !l.leaving.idle() {
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
