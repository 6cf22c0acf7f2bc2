package hypervisor

import (
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/departure"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/handover"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/negotiation"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qmp"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// serve runs or stops the guest as the controller requests. It returns when the guest powers off, the machine
// fails, the controller terminates this hypervisor, or the VM has moved or shut down after the process was asked
// to terminate.
func (h *hypervisor) serve(stop <-chan struct{}) error {
	h.openEvacuation()
	for {
		changed, err := h.followLease()
		if err != nil {
			return err
		}
		if h.evacuation.shutDown && h.evacuation.idle() {
			return h.guest.shutDown(h.lease, h.evacuation.shutdownReason)
		}
		again, err := h.hold(changed, stop)
		if err != nil {
			return h.guest.failed(err)
		}
		if err := h.await(changed, again, &stop); err != nil {
			return err
		}
	}
}

// await waits for the next event and handles it. It sets stop to nil once the process was asked to terminate. If
// it returns an error, the process must terminate for that reason.
func (h *hypervisor) await(changed <-chan struct{}, again <-chan time.Time, stop *<-chan struct{}) error {
	select {
	case <-h.guest.machine.Done():
		return ended(h.guest.machine.Exit())
	case <-changed:
	case <-h.guest.machine.Changed():
	case <-again:
	case <-h.lease.suspended:
		return h.expire()
	case result := <-h.evacuation.results():
		if err := h.apply(h.evacuation.take(result)); err != nil {
			return err
		}
		return h.apply(h.evacuation.afterResult(h.lease.connected()))
	case <-*stop:
		*stop = nil
		return h.apply(h.evacuation.stop(h.grace(), h.lease.connected()))
	case <-h.config.SecondSIGTERM:
		h.evacuation.expedite()
	case <-h.evacuation.recheck:
		return h.apply(h.evacuation.checkController(h.lease.connected()))
	case <-h.evacuation.timeout:
		return h.apply(h.evacuation.cancel("The migration did not complete in time."))
	}
	return nil
}

// hold runs or stops the guest, unless a migration controls QEMU. It returns early, without an error, if another
// event must be handled.
func (h *hypervisor) hold(changed, stop <-chan struct{}) (again <-chan time.Time, err error) {
	if h.evacuation.controlsQEMU() {
		return nil, nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-changed:
		case <-stop:
		case <-ctx.Done():
		}
		cancel()
	}()
	if authorization, _ := h.lease.current(); h.evacuation.idle() {
		h.disks.grow(ctx, h.guest.machine, authorization.Grow)
	}
	again, err = h.guest.hold(ctx)
	if ctx.Err() != nil {
		return nil, nil
	}
	if errors.Is(err, qmp.ErrDisconnected) {
		return h.guest.awaitExit(err)
	}
	return again, err
}

// followLease does what the controller requests in its response to the run lease. changed is closed when the
// request changes; it may be nil. If followLease returns an error, the process must terminate for that reason.
func (h *hypervisor) followLease() (changed <-chan struct{}, err error) {
	authorization, changed := h.lease.current()
	switch {
	case authorization.Terminated:
		return changed, h.apply(h.evacuation.terminate())
	case authorization.Expired:
		return nil, h.expire()
	case !authorization.Granted:
		return changed, nil
	}
	h.guest.paused = authorization.Paused
	return changed, h.apply(h.evacuation.follow(authorization.Migrate, h.disks.located()))
}

// expire terminates the guest before its lease expires. QEMU flushes to the disk if there is enough time.
func (h *hypervisor) expire() error {
	h.log.Warn("the lease was not renewed in time; terminating the guest")
	h.server.SetServing(false)
	h.guest.flush(h.lease.flushTime())
	defer func() { h.log.Warn("terminated the guest before its lease expires") }()
	return h.guest.kill(errExpired)
}

// defaultGrace is used if VMSpec.grace is not set.
const defaultGrace = 30 * time.Second

// grace returns how long this process may take to terminate after SIGTERM.
func (h *hypervisor) grace() time.Duration {
	if h.config.Spec.GetGrace() != nil {
		return h.config.Spec.GetGrace().AsDuration()
	}
	return defaultGrace
}

// openEvacuation enables live migration to other hosts.
func (h *hypervisor) openEvacuation() {
	h.evacuation.log = h.log
	h.evacuation.shutdownTime = h.config.Timing.Grace + h.config.Timing.Quit + h.config.Timing.Margin
	if h.config.Migration == nil {
		return
	}
	h.evacuation.migrations = departure.New(departure.Options{
		Us: h.us, NextRun: h.nextRun, Controller: vmpb.NewVMControllerClient(h.conn),
		Siblings: h.config.Migration.Siblings, Machine: h.guest.machine, Describe: h.describeSource,
		Report: h.reportMigration, ReleaseDisks: h.disks.release,
		Bandwidth: h.config.Migration.Bandwidth, Timing: h.config.Migration.Departure, Log: h.log,
	})
}

// nextRun returns a new run of this process.
func (h *hypervisor) nextRun() (*vmpb.HypervisorID, error) {
	run, err := NextRun(h.config.Paths.Run, time.Now())
	if err != nil {
		return nil, err
	}
	next := proto.CloneOf(h.us)
	next.RunId = run
	return next, nil
}

// describeSource returns the properties that a target must match.
func (h *hypervisor) describeSource() (negotiation.Machine, error) {
	machine := h.disks.describe()
	hardware, err := h.machine.Hardware()
	if err != nil {
		return negotiation.Machine{}, err
	}
	sizes, err := h.disks.Sizes()
	if err != nil {
		return negotiation.Machine{}, err
	}
	machine.Hardware, machine.DiskBytes = hardware, sizes[0].GetBytes()
	for _, size := range sizes[1:] {
		machine.DataDisks = append(machine.DataDisks, negotiation.DataDisk{Name: size.GetName(), Bytes: size.GetBytes()})
	}
	return machine, nil
}

// apply performs the action that a migration requires of the hypervisor. If it returns an error, the process must
// terminate for that reason.
func (h *hypervisor) apply(action handover.SourceAction) error {
	switch action {
	case handover.Kill:
		if h.evacuation.committed {
			h.carryClients()
			return h.guest.kill(errMoved)
		}
		return h.guest.kill(errTerminated)
	case handover.Reclaim:
		h.lease.suspend()
	case handover.OpenLease:
		return h.reopenLease()
	case handover.Resume:
		return h.resume()
	}
	if h.evacuation.mayRun() {
		h.guest.offer()
	} else {
		h.guest.withdraw()
	}
	return nil
}

// reopenLease opens the lease of the run that got the VM back.
func (h *hypervisor) reopenLease() error {
	h.us = h.evacuation.migrations.Run()
	h.reporter.Become(h.us)
	h.overlay.follow(h.conn, h.us)
	if err := h.openLease(context.Background()); err != nil || h.lease.expires() {
		return err
	}
	return h.apply(h.evacuation.leased())
}

// resume continues a guest whose migration failed. The lease of the run before the migration is no longer used.
func (h *hypervisor) resume() error {
	if err := h.retakeDisks(); err != nil {
		return err
	}
	h.lease.suspended = nil
	h.evacuation.resumed()
	h.guest.lastOrder = orderNone
	h.guest.offer()
	if err := h.guest.resume(); err != nil {
		return h.guest.failed(err)
	}
	return nil
}

// retakeDisks locks the disks again after they were released for a target. The guest does not run while another
// process holds them.
func (h *hypervisor) retakeDisks() error {
	ctx, end := context.WithCancelCause(context.Background())
	defer end(nil)
	h.lease.watch(ctx, end)
	return h.disks.retake(ctx, h.us)
}
