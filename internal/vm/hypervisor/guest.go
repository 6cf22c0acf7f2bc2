package hypervisor

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/controller"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/service"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// guest is the guest of a machine that has been started.
type guest struct {
	machine  Machine
	disks    *guestDisks
	server   *service.Server
	clients  *clients
	reporter *controller.Reporter
	timing   Timing
	log      *slog.Logger

	// paused is true if the controller requests that the guest is stopped.
	paused bool
	// lastOrder is the last order that was sent to QEMU.
	lastOrder order
	recovery  recovery
	// exitDeadline is when QEMU must have exited after it closed its connection. It is zero while the connection is open.
	exitDeadline time.Time
}

// order is a command for QEMU.
type order string

const (
	orderNone order = ""
	orderRun  order = "run"
	orderHold order = "hold"
)

// offer makes the guest's console, reset and ports available.
func (g *guest) offer() {
	g.server.SetGuest(g.machine)
	g.clients.guest.run(g.machine)
}

// withdraw makes them unavailable, because the guest is stopped for a migration or no longer runs here.
func (g *guest) withdraw() {
	g.clients.guest.wait()
	g.server.SetGuest(nil)
	g.server.SetServing(false)
}

// hold runs or stops the guest as the controller requests, and reports its state. A machine starts with the guest
// stopped. The channel again receives a value when hold must be called again even if nothing else happens. It is
// nil if that is not necessary.
//
// Each order is sent to QEMU once. If the guest is then stopped or continued by someone else, hold only reports
// that, unless the cause is the storage or a reset.
func (g *guest) hold(ctx context.Context) (again <-chan time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, g.timing.Command)
	defer cancel()
	state, err := g.machine.State(ctx)
	if err != nil {
		return nil, err
	}
	retry := g.recovery.due(state.Status, g.timing.Resume)
	if next := g.next(state.Status, retry); next != orderNone {
		if err := g.send(ctx, next); err != nil {
			return nil, err
		}
		if state, err = g.machine.State(ctx); err != nil {
			return nil, err
		}
	}
	if state.Status == qemu.Broken {
		return nil, fmt.Errorf("%w: QEMU cannot continue the guest (%s)", errMachine, state.Status)
	}
	if retry {
		g.recovery.continued(g.timing.Settle)
	}
	if !g.recovery.pending(state.Status) {
		g.report(state)
	}
	return g.recovery.timer(), nil
}

// resume runs or stops a guest that was received, or whose migration failed. It activates the disks even if the
// guest stays stopped, because the guest may grow or migrate again.
func (g *guest) resume() error {
	if g.paused {
		ctx, cancel := context.WithTimeout(context.Background(), g.timing.Command)
		defer cancel()
		if err := g.machine.Activate(ctx); err != nil {
			return err
		}
	}
	_, err := g.hold(context.Background())
	return err
}

// next returns the next order for QEMU, or none.
func (g *guest) next(status qemu.Status, retry bool) order {
	switch {
	case g.paused && g.lastOrder != orderHold:
		return orderHold
	case g.paused:
		return orderNone
	case g.lastOrder != orderRun, retry, status == qemu.Prelaunch, // the guest was reset while it was stopped
		status == qemu.Left: // the state was sent, but the migration was not committed
		return orderRun
	}
	return orderNone
}

func (g *guest) send(ctx context.Context, what order) error {
	act := g.machine.Cont
	if what == orderHold {
		act = g.machine.Stop
	}
	if err := act(ctx); err != nil {
		return err
	}
	g.lastOrder = what
	return nil
}

// shutDown asks the guest to shut down and waits for it. It terminates the guest if that takes too long. The
// reason is for users.
func (g *guest) shutDown(lease *runLease, reason string) error {
	g.server.SetServing(false)
	g.reporter.Update(func(r *controller.Report) { r.State, r.Message = vmpb.ReportStateRequest_STATE_STOPPING, reason })
	late := time.After(g.timing.Grace)
	if !g.runs() {
		// A stopped guest would not notice the power button.
		return g.quit("the guest was stopped, so it was terminated without a shutdown")
	}
	ctx, cancel := context.WithTimeout(context.Background(), g.timing.Grace)
	defer cancel()
	press := time.NewTimer(0)
	defer press.Stop()
	for {
		authorization, changed := lease.current()
		if why := over(authorization); why != nil {
			return g.kill(why)
		}
		select {
		case <-g.machine.Done():
			return stopped(g.machine.Exit())
		case <-press.C:
			if err := g.machine.Powerdown(ctx); err != nil {
				g.log.Warn("cannot press the guest's power button", "error", err)
			}
			press.Reset(g.timing.Press)
		case <-late:
			return g.quit("the guest did not shut down in time and was terminated")
		case <-changed:
		}
	}
}

// runs reports whether the guest runs. It asks QEMU, because the guest may have been continued a moment ago and
// not reported yet. If QEMU does not respond, the last order decides.
func (g *guest) runs() bool {
	ctx, cancel := context.WithTimeout(context.Background(), g.timing.Quit)
	defer cancel()
	state, err := g.machine.State(ctx)
	if err != nil {
		g.log.Warn("QEMU does not report whether the guest runs", "error", err)
		return g.lastOrder == orderRun
	}
	return state.Status == qemu.Running
}

// quit lets QEMU flush its buffers to the disk and exit. If QEMU does not exit, hypervisor.close kills it.
func (g *guest) quit(message string) error {
	ctx, cancel := context.WithTimeout(context.Background(), g.timing.Quit)
	defer cancel()
	if err := g.machine.Quit(ctx); err != nil {
		g.log.Warn("QEMU did not quit; killing it", "error", err)
	}
	return &ending{vmpb.EndStopped, message}
}

// flush stops the guest and lets QEMU flush its buffers to the disk, if that takes no longer than limit.
func (g *guest) flush(limit time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if err := g.machine.Stop(ctx); err == nil {
		_ = g.machine.Quit(ctx)
	}
}

// kill kills the guest, because another hypervisor may be waiting for its disk. It returns the given reason.
func (g *guest) kill(why error) error {
	g.server.SetServing(false)
	_ = g.machine.Kill(context.Background()) // returns once the process has terminated
	return why
}

// awaitExit waits for the exit of QEMU after QEMU has closed its connection. Freeing the memory of a large guest
// takes seconds. The limit in failed is too short for that: a guest that powered itself off would be reported as
// failed. After Timing.Command, awaitExit returns the error of the connection.
func (g *guest) awaitExit(disconnected error) (again <-chan time.Time, err error) {
	if g.exitDeadline.IsZero() {
		g.exitDeadline = time.Now().Add(g.timing.Command)
	}
	left := time.Until(g.exitDeadline)
	if left <= 0 {
		return nil, disconnected
	}
	return time.After(left), nil
}

// failed explains why a command failed. Usually the machine has just terminated; its exit is then the reason.
func (g *guest) failed(err error) error {
	select {
	case <-g.machine.Done():
		return ended(g.machine.Exit())
	case <-time.After(g.timing.Quit):
		return fmt.Errorf("%w: %w", errMachine, err)
	}
}

// ended returns the reason for the exit of a machine that was not asked to exit.
func ended(exit qemu.Exit) error {
	if exit.Reason == qemu.GuestShutdown {
		return &ending{vmpb.EndGuestShutdown, "the guest powered itself off"}
	}
	return &ending{vmpb.EndQEMUFailed, "QEMU exited: " + exit.String()}
}

// stopped returns the reason for the exit of a machine whose guest was asked to shut down.
func stopped(exit qemu.Exit) error {
	if exit.Reason == qemu.GuestShutdown {
		return &ending{vmpb.EndStopped, "the guest shut down as requested"}
	}
	return ended(exit)
}

// report reports the state of the guest. The disks are complete at this point.
func (g *guest) report(state qemu.State) {
	report := describeState(state, g.paused)
	if report.Cause == vmpb.ReportStateRequest_CAUSE_STORAGE_FAILED {
		report.Message = g.disks.explain(report.Message)
	}
	g.server.SetServing(report.State == vmpb.ReportStateRequest_STATE_RUNNING || g.paused)
	g.reporter.Update(func(r *controller.Report) {
		r.State, r.Cause, r.Message, r.Prepared = report.State, report.Cause, report.Message, true
		r.Disks = g.disks.sizes()
	})
	g.log.Info("guest state", "state", report.State, "qemu", state.Status, "message", report.Message)
}

// describeState returns the report for the state of a machine.
func describeState(state qemu.State, paused bool) controller.Report {
	stopped := controller.Report{State: vmpb.ReportStateRequest_STATE_PAUSED}
	switch status := state.Status; {
	case status == qemu.Running:
		return controller.Report{State: vmpb.ReportStateRequest_STATE_RUNNING}
	case status == qemu.StorageFailed && state.Failure.NoSpace:
		stopped.Cause = vmpb.ReportStateRequest_CAUSE_NO_SPACE
		stopped.Message = "The disk's storage is full. The guest is stopped and continues when there is free space."
	case status == qemu.StorageFailed:
		stopped.Cause = vmpb.ReportStateRequest_CAUSE_STORAGE_FAILED
		stopped.Message = fmt.Sprintf("The disk's storage failed (%s: %s). The guest is stopped and continues when the storage works again.",
			state.Failure.Operation, state.Failure.Reason)
	case status == qemu.Suspended:
		stopped.Cause = vmpb.ReportStateRequest_CAUSE_SUSPENDED
		stopped.Message = "The guest is suspended."
	case status == qemu.Leaving:
		stopped.Message = "The guest is stopped for its migration."
	case !paused:
		stopped.Message = fmt.Sprintf("The guest was stopped by a command to QEMU (%s).", status)
	}
	return stopped
}
