package hypervisor

import (
	"context"
	"fmt"
	"time"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/controller"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// guest is what is known of a guest.
type guest struct {
	// told is what QEMU was told to do last: nothing, to run or to hold the guest.
	told     order
	recovery recovery
	// closing is until when QEMU, which has closed its connection, has to end. Zero: it has not.
	closing time.Time
}

// order is what QEMU is told.
type order string

const (
	orderNone order = ""
	orderRun  order = "run"
	orderHold order = "hold"
)

// hold brings QEMU closer to what the controller wants, and reports what QEMU does. A machine
// starts with the guest stopped. again receives when there is something to do even if nothing
// changes; nil is never.
//
// QEMU is told once. If someone else stops or continues the guest then, that is only
// reported, unless the storage or a reset was the cause.
func (l *life) hold(ctx context.Context, paused bool) (again <-chan time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, l.config.Timing.Command)
	defer cancel()
	state, err := l.machine.State(ctx)
	if err != nil {
		return nil, err
	}
	retry := l.guest.recovery.due(state.Status, l.config.Timing.Resume)
	if next := l.guest.next(state.Status, paused, retry); next != orderNone {
		if err := l.tell(ctx, next); err != nil {
			return nil, err
		}
		if state, err = l.machine.State(ctx); err != nil {
			return nil, err
		}
	}
	if state.Status == qemu.Broken {
		return nil, fmt.Errorf("%w: QEMU cannot continue the guest (%s)", errMachine, state.Status)
	}
	if retry {
		l.guest.recovery.continued(l.config.Timing.Settle)
	}
	if !l.guest.recovery.pending(state.Status) {
		l.reportGuest(state, paused)
	}
	return l.guest.recovery.timer(), nil
}

// next returns what to tell QEMU.
func (g *guest) next(status qemu.Status, paused, retry bool) order {
	switch {
	case paused && g.told != orderHold:
		return orderHold
	case paused:
		return orderNone
	case g.told != orderRun, retry, status == qemu.Prelaunch, // it was reset while it was stopped
		status == qemu.Left: // it was sent, and there was no commit
		return orderRun
	}
	return orderNone
}

func (l *life) tell(ctx context.Context, what order) error {
	act := l.machine.Cont
	if what == orderHold {
		act = l.machine.Stop
	}
	if err := act(ctx); err != nil {
		return err
	}
	l.guest.told = what
	return nil
}

// recovery is the attempts to continue a guest whose storage failed.
type recovery struct {
	// at is when the guest is continued, or when that counts as a success. Zero: the
	// storage works.
	at time.Time
	// trying reports whether the guest was continued.
	trying bool
}

// due reports whether to continue the guest now.
func (r *recovery) due(status qemu.Status, pause time.Duration) bool {
	now := time.Now()
	failed := status == qemu.StorageFailed
	switch {
	case failed && (r.at.IsZero() || r.trying):
		*r = recovery{at: now.Add(pause)}
	case !failed && !(r.trying && now.Before(r.at)):
		*r = recovery{}
	}
	return failed && !now.Before(r.at)
}

func (r *recovery) continued(settle time.Duration) {
	*r = recovery{at: time.Now().Add(settle), trying: true}
}

// pending reports whether it is too early to say that a guest runs which was continued.
func (r *recovery) pending(status qemu.Status) bool {
	return r.trying && (status == qemu.Running || status == qemu.StorageFailed)
}

// timer receives when due may answer something else; nil is never.
func (r *recovery) timer() <-chan time.Time {
	if r.at.IsZero() {
		return nil
	}
	return time.After(time.Until(r.at))
}

// reportGuest reports what QEMU does with the guest. The disk is complete by then.
func (l *life) reportGuest(state qemu.State, paused bool) {
	report := describeState(state, paused)
	if l.served != nil && report.Cause == vmpb.ReportStateRequest_CAUSE_STORAGE_FAILED {
		report.Message = l.served.Explain(report.Message)
	}
	l.server.SetServing(report.State == vmpb.ReportStateRequest_STATE_RUNNING || paused)
	l.reporter.Update(func(r *controller.Report) {
		r.State, r.Cause, r.Message, r.Prepared = report.State, report.Cause, report.Message, true
		r.Disks = l.diskSizes()
	})
	l.log.Info("the guest's state", "state", report.State, "qemu", state.Status, "message", report.Message)
}

// describeState returns the report of what QEMU does.
func describeState(state qemu.State, paused bool) controller.Report {
	stopped := controller.Report{State: vmpb.ReportStateRequest_STATE_PAUSED}
	switch status := state.Status; {
	case status == qemu.Running:
		return controller.Report{State: vmpb.ReportStateRequest_STATE_RUNNING}
	case status == qemu.StorageFailed && state.Failure.NoSpace:
		stopped.Cause = vmpb.ReportStateRequest_CAUSE_NO_SPACE
		stopped.Message = "The disk's storage is full. The guest is stopped, and goes on when there is room."
	case status == qemu.StorageFailed:
		stopped.Cause = vmpb.ReportStateRequest_CAUSE_STORAGE_FAILED
		stopped.Message = fmt.Sprintf("The disk's storage fails (%s: %s). The guest is stopped, and goes on when the storage works.",
			state.Failure.Operation, state.Failure.Reason)
	case status == qemu.Suspended:
		stopped.Cause = vmpb.ReportStateRequest_CAUSE_SUSPENDED
		stopped.Message = "The guest sleeps."
	case !paused:
		stopped.Message = fmt.Sprintf("The guest was stopped by a command to QEMU (%s).", status)
	}
	return stopped
}
