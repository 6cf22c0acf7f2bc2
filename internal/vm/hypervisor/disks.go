package hypervisor

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/controller"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disks"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/negotiation"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/served"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// storage is the storage of the guest's disks: a *disks.Set or a *served.Disks.
type storage interface {
	// Lock excludes other processes from the disks. It returns disk.ErrLocked if another process holds them.
	Lock() error
	Unlock() error
	// Locked reports whether the disks are locked.
	Locked() bool
	// Attach adds the disks, which must exist, to the description of a machine.
	Attach(to *qemu.Disks) error
	// Sizes returns the sizes of the disks, the root disk first.
	Sizes() ([]*vmpb.DiskSize, error)
	// Shared reports whether both sides of a migration use the same disks, which means that no disk is copied.
	Shared() bool
	// Expect prepares the disks for a guest that will be received. The sizes are those of the disks that are
	// copied.
	Expect(sizes []*vmpb.DiskSize) error
}

// guestDisks are the disks of the guest. A disk server locks, prepares and grows the disks that it serves. In that
// case, this process only locks its run directory.
type guestDisks struct {
	storage
	local    *disks.Set    // nil if a server serves the disks
	served   *served.Disks // nil if the disks are local
	preparer disks.Preparer
	log      *slog.Logger
	// claimed is the run that has claimed the disks.
	claimed string
	// isNew is true if disks were created that the controller may not know about.
	isNew bool
	// known are the sizes of the disks. If nil, they must be measured.
	known *controller.Disks
	// grown is the last request to grow that was passed to QEMU, or nil.
	grown *controller.Disks
}

func newGuestDisks(config Config) *guestDisks {
	d := &guestDisks{preparer: disks.Preparer{
		Spec: config.Spec, Run: config.Paths.Run, WriteDisk: config.WriteDisk,
		LockRetry: config.Timing.LockRetry, LockLimit: config.Timing.LockLimit,
	}}
	if config.Spec.GetDisksServed() {
		d.served = served.New(served.Options{
			Disks: config.Spec.GetDataDisks(), Run: config.Paths.Run, Connect: config.DiskServer, Retry: config.Timing.LockRetry, Log: config.Log,
		})
		d.storage = d.served
		return d
	}
	d.local = disks.New(config.Spec, config.Paths.RootDisk, config.Paths.DataDisks)
	d.storage = d.local
	return d
}

// lock locks the disks. It must be called before anything is written to a disk or next to it.
func (d *guestDisks) lock(ctx context.Context) error { return d.preparer.AwaitLock(ctx, d.Lock) }

// claim records on shared disks that this run runs the guest.
func (d *guestDisks) claim(us *vmpb.HypervisorID) error {
	if d.local == nil {
		return nil
	}
	d.claimed = claimOf(us)
	return d.local.Claim(d.claimed)
}

// claimOf returns the name of a run in a claim of disks.
func claimOf(us *vmpb.HypervisorID) string {
	return fmt.Sprintf("%s/%d", us.GetPodName(), us.GetRunId())
}

// prepare prepares local disks. Disks are created only once.
func (d *guestDisks) prepare(ctx context.Context) (err error) {
	if d.local != nil {
		d.isNew, err = d.preparer.Prepare(ctx, d.local)
	}
	return err
}

// mustBeReported reports whether the controller must know that the disks are complete before the guest runs.
func (d *guestDisks) mustBeReported() bool { return d.local != nil && d.local.MustBeKnown() }

// release unlocks shared disks for the target of a migration.
func (d *guestDisks) release() error {
	if d.local == nil {
		return nil // the fencing token excludes other hypervisors from served disks
	}
	return d.local.Release()
}

// takeOver locks shared disks that the source of a migration has released.
func (d *guestDisks) takeOver(ctx context.Context, from *vmpb.HypervisorID) error {
	return d.relock(ctx, claimOf(from))
}

// retake locks shared disks again after they were released for a target that did not get the VM.
func (d *guestDisks) retake(ctx context.Context, us *vmpb.HypervisorID) error {
	if d.local == nil || d.Locked() {
		return nil
	}
	if err := d.relock(ctx, d.claimed); err != nil {
		return err
	}
	return d.claim(us)
}

// relock locks shared disks. It fails if a run other than the given one has used them in the meantime.
func (d *guestDisks) relock(ctx context.Context, claim string) error {
	if d.local == nil || d.Locked() {
		return nil
	}
	if err := d.lock(ctx); err != nil {
		return err
	}
	return d.local.Unused(claim)
}

// follow attaches served disks at the location in a lease, using the token of the lease.
func (d *guestDisks) follow(lease *controller.Lease) {
	if d.served != nil {
		d.served.Follow(lease)
	}
}

// located reports whether the location of the disks is known from the lease. Local disks do not need a lease.
func (d *guestDisks) located() bool { return d.served == nil || d.served.Located() }

// await waits until the disks can be attached. Meanwhile it reports what it is waiting for.
func (d *guestDisks) await(ctx context.Context, report func(string)) error {
	if d.served == nil {
		return nil
	}
	return d.served.Await(ctx, report)
}

// available reports whether the disks can be attached now.
func (d *guestDisks) available(ctx context.Context) bool {
	if d.served == nil {
		return true
	}
	_, err := d.served.Find(ctx)
	return err == nil
}

// detach closes the connections to served disks. When it returns, nothing more is sent.
func (d *guestDisks) detach() {
	if d.served != nil {
		d.served.Detach()
	}
}

// explain appends the reason why the disks cannot be attached to a message about failed storage.
func (d *guestDisks) explain(message string) string {
	if d.served == nil {
		return message
	}
	return d.served.Explain(message)
}

// describe returns the properties of the disks that both sides of a migration must agree on.
func (d *guestDisks) describe() negotiation.Machine {
	return negotiation.Machine{SharedDisk: d.Shared(), Served: d.served != nil}
}

// sizes returns the sizes of the disks, which are complete.
func (d *guestDisks) sizes() *controller.Disks {
	if d.known != nil {
		return d.known
	}
	sizes, err := d.Sizes()
	if err != nil {
		d.log.Warn("cannot determine the size of a disk", "error", err)
	}
	d.known = (*controller.Disks)(&sizes)
	return d.known
}

// grow enlarges local disks to at least the desired sizes. A failure is not retried: the disks are enlarged when
// the VM is next started. If desired is nil, grow does nothing.
func (d *guestDisks) grow(ctx context.Context, machine Machine, desired *controller.Disks) {
	if d.local == nil || desired == nil || desired == d.grown {
		return
	}
	d.grown = desired
	for _, size := range disks.Growing(*d.sizes(), *desired) {
		err := machine.Grow(ctx, size.GetName(), size.GetBytes())
		d.log.Info("growing a disk", "disk", size.GetName(), "bytes", size.GetBytes(), "error", err)
	}
	d.known = nil // they are measured when they are reported
}
