package hypervisor

import (
	"context"
	"log/slog"
	"time"

	"google.golang.org/grpc"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/controller"
	"github.com/millwright-dev/millwright/internal/vm/lease"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// releaseLimit is how long the controller may take to confirm the release of the lease.
const releaseLimit = 2 * time.Second

// runLease is the controller's permission to run the guest. It is used by a single goroutine.
type runLease struct {
	*controller.Lease // nil before open, and between suspend and the next open
	config            Config
	log               *slog.Logger
	watchdog          Watchdog // nil if leases do not expire
	// suspended receives a value if the lease of the previous run expires before the new run has a lease. It is
	// nil while no lease is suspended.
	suspended <-chan time.Time
}

// fullLeases reports whether the guest runs only with a lease that expires.
func fullLeases(spec *vmpb.VMSpec) bool {
	return spec.GetLeaseMode() == vmpb.LeaseMode_LM_FULL_LEASES
}

func (r *runLease) expires() bool           { return fullLeases(r.config.Spec) }
func (r *runLease) duration() time.Duration { return r.config.Spec.GetLeaseDuration().AsDuration() }

// open requests the lease of a run. The watchdog starts first, so that nothing in this process writes to the disks
// after the lease has expired.
func (r *runLease) open(conn *grpc.ClientConn, us *vmpb.HypervisorID, reopened func()) error {
	if !r.expires() {
		r.Lease = controller.OpenLease(vmpb.NewVMControllerClient(conn), us, r.log, reopened)
		return nil
	}
	if r.watchdog == nil { // otherwise it already knows the lease of the previous run
		watchdog, err := r.config.Watchdog()
		if err != nil {
			return err
		}
		r.watchdog = watchdog
	}
	r.Lease = controller.OpenExpiring(us, r.log, reopened, controller.Terms{
		Duration: r.duration(), Now: r.config.Clock, Watchdog: r.watchdog,
		Connect: func() (*grpc.ClientConn, error) { return r.config.Connect(r.config.Spec.GetControllerEndpoint()) },
	})
	return nil
}

// current returns the controller's last response, and a channel that is closed when there is a new one. While the
// lease is suspended, it returns the zero value and nil.
func (r *runLease) current() (controller.Authorization, <-chan struct{}) {
	if r.Lease == nil {
		return controller.Authorization{}, nil
	}
	return r.Lease.Current()
}

// connected reports whether the controller can be reached.
func (r *runLease) connected() bool { return r.Lease != nil && r.Lease.Connected() }

// over returns why the guest must not run any more, or nil if it may run.
func over(authorization controller.Authorization) error {
	switch {
	case authorization.Terminated:
		return errTerminated
	case authorization.Expired:
		return errExpired
	}
	return nil
}

// watch cancels a context when the controller terminates this hypervisor or the lease expires. It does not block.
func (r *runLease) watch(ctx context.Context, end context.CancelCauseFunc) {
	lease := r.Lease
	go func() {
		for {
			authorization, changed := lease.Current()
			if why := over(authorization); why != nil {
				end(why)
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}()
}

// flushTime returns how long QEMU may take to flush to the disk when the lease is about to expire.
func (r *runLease) flushTime() time.Duration {
	l := lease.Lease{Duration: r.duration()}
	return (l.Kill() - l.Stop()) / 2
}

// suspend closes the lease of a run that has given up its authority. The process still terminates if that lease
// expires before another run has one.
func (r *runLease) suspend() {
	if r.Lease == nil {
		return
	}
	r.Lease.Close()
	if r.expires() {
		r.suspended = time.After(r.Left())
	}
	r.Lease = nil
}

func (r *runLease) close() {
	if r.Lease != nil {
		r.Lease.Close()
	}
}

// release releases the lease once no part of the VM runs here, so that another hypervisor can start immediately.
func (r *runLease) release(conn *grpc.ClientConn, us *vmpb.HypervisorID) {
	if r.watchdog == nil {
		return
	}
	r.watchdog.Close()
	ctx, cancel := context.WithTimeout(context.Background(), releaseLimit)
	defer cancel()
	if err := controller.Release(ctx, vmpb.NewVMControllerClient(conn), us); err != nil {
		r.log.Info("cannot release the lease; it expires instead", "error", err)
	}
}
