package hypervisor

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/controller"
	"github.com/millwright-dev/millwright/internal/vm/lease"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// releaseLimit is how long the controller may take to answer that the lease is released.
const releaseLimit = 2 * time.Second

// fullLeases reports whether the guest runs only with a lease that expires.
func fullLeases(spec *vmpb.VMSpec) bool {
	return spec.GetLeaseMode() == vmpb.LeaseMode_LM_FULL_LEASES
}

// over returns why the guest must not run any more; nil if it may.
func over(authorization controller.Authorization) error {
	switch {
	case authorization.Terminated:
		return errTerminated
	case authorization.Expired:
		return errExpired
	}
	return nil
}

// openExpiring asks for the first lease. The watchdog comes first: from the lease on, also what this process writes
// itself has to end with it.
func (l *life) openExpiring() error {
	if l.watchdog == nil { // else it knows the lease of the run before
		watchdog, err := l.config.Watchdog()
		if err != nil {
			return err
		}
		l.watchdog = watchdog
	}
	l.lease = controller.OpenExpiring(l.us, l.log, l.reporter.Repeat, controller.Terms{
		Duration: l.config.Spec.GetLeaseDuration().AsDuration(), Now: l.config.Clock, Watchdog: l.watchdog,
		Connect: func() (*grpc.ClientConn, error) { return l.config.Connect(l.config.Spec.GetControllerEndpoint()) },
	})
	if l.served != nil {
		l.served.Follow(l.lease)
	}
	return nil
}

// expire ends the guest before its lease ends. What it has written is on the disk, if QEMU has the time for that.
func (l *life) expire() error {
	l.log.Warn("the lease was not renewed in time; ending the guest")
	l.server.SetServing(false)
	duration := l.config.Spec.GetLeaseDuration().AsDuration()
	window := lease.Lease{Duration: duration}.Kill() - lease.Lease{Duration: duration}.Stop()
	ctx, cancel := context.WithTimeout(context.Background(), window/2)
	defer cancel()
	if err := l.machine.Stop(ctx); err == nil {
		_ = l.machine.Quit(ctx) // else it is killed
	}
	defer func() { l.log.Warn("the guest has ended, as its lease expires") }()
	return l.terminate(errExpired)
}

// release lets another hypervisor begin at once, now that nothing of the VM runs here any more.
func (l *life) release() {
	if l.watchdog == nil {
		return
	}
	l.watchdog.Close()
	ctx, cancel := context.WithTimeout(context.Background(), releaseLimit)
	defer cancel()
	if err := controller.Release(ctx, vmpb.NewVMControllerClient(l.conn), l.us); err != nil {
		l.log.Info("the lease is not released; it expires", "error", err)
	}
}
