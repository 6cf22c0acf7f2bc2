package hypervisor

import (
	"log/slog"
	"time"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/departure"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/handover"
)

const (
	// maxUnreachable is how long an unreachable controller is waited for: the whole installation may be shutting down.
	maxUnreachable = 2 * time.Second
	// maxFailOver replaces maxUnreachable if the controller was connected when the process was asked to terminate: then
	// another replica of it may be starting.
	maxFailOver = time.Minute
)

// evacuation moves the guest to another hypervisor when the controller requests it, or when the process is asked to
// terminate. If the guest cannot be moved in time, it requests a shutdown instead. The zero value cannot migrate.
//
// The methods return what is left to do for the hypervisor, see hypervisor.apply.
type evacuation struct {
	migrations *departure.Departure // nil if live migration is disabled
	log        *slog.Logger
	// requested is whether the controller requests, by the run lease, that the VM moves.
	requested bool
	// stopping is whether the process was asked to terminate.
	stopping bool
	// timeout receives when the time for migrating is over.
	timeout <-chan time.Time
	// controllerTimeout is how long the controller may be unreachable until the guest is shut down instead of migrated,
	// and controllerDeadline is when that time is over.
	controllerTimeout  time.Duration
	controllerDeadline time.Time
	// recheck receives when controllerDeadline has passed after expedite.
	recheck <-chan time.Time
	// shutDown is whether the guest must shut down once no migration is in progress.
	shutDown bool
	// shutdownReason tells users why the guest shuts down instead of migrating. It is empty if the controller decided so.
	shutdownReason string
	// committed is whether another hypervisor may run the guest.
	committed bool
}

func (e *evacuation) close() {
	if e.migrations != nil {
		e.migrations.Close()
	}
}

// idle reports whether no migration is in progress.
func (e *evacuation) idle() bool { return e.migrations == nil || e.migrations.Idle() }

// controlsQEMU reports whether a migration decides if QEMU runs the guest.
func (e *evacuation) controlsQEMU() bool { return e.migrations != nil && e.migrations.ControlsQEMU() }

// mayRun reports whether the guest may run here.
func (e *evacuation) mayRun() bool { return e.migrations == nil || e.migrations.MayRun() }

func (e *evacuation) results() <-chan departure.Result {
	if e.migrations == nil {
		return nil
	}
	return e.migrations.Results()
}

// tell passes an event to the migration.
func (e *evacuation) tell(event handover.SourceEvent) handover.SourceAction {
	return e.note(e.migrations.Tell(event))
}

// take passes the result of a step to the migration.
func (e *evacuation) take(result departure.Result) handover.SourceAction {
	return e.note(e.migrations.Take(result))
}

func (e *evacuation) note(action handover.SourceAction) handover.SourceAction {
	switch action {
	case handover.ShutDown:
		e.shutDown = e.stopping
	case handover.Commit:
		e.committed = true
	}
	return action
}

// terminate ends the guest's run here because the controller requests it.
func (e *evacuation) terminate() handover.SourceAction {
	if e.migrations == nil {
		return handover.Kill
	}
	return e.tell(handover.Terminated)
}

// follow moves the VM or keeps it as the controller requests, or continues a guest that has waited for its lease.
// disksLocated is whether the disks can be attached: a guest whose disks were cut off with the token of its previous run
// cannot use them without the new one.
func (e *evacuation) follow(requested, disksLocated bool) handover.SourceAction {
	switch {
	case e.migrations == nil:
		return handover.Nothing
	case e.migrations.AwaitsLease() && !e.stopping && !disksLocated:
		return handover.Nothing
	case e.migrations.AwaitsLease():
		return e.leased()
	case requested == e.requested:
		return handover.Nothing
	}
	e.requested = requested
	switch {
	case requested:
		return e.tell(handover.Ordered)
	case !e.stopping:
		return e.tell(handover.Cancelled)
	}
	return handover.Nothing
}

// leased continues a guest that has waited for its lease.
func (e *evacuation) leased() handover.SourceAction { return e.tell(handover.Leased) }

// resumed notes that the guest runs here again.
func (e *evacuation) resumed() {
	e.committed, e.requested, e.shutDown = false, false, e.stopping
}

// stop begins the termination of the process: the VM migrates if that leaves enough time for a shutdown.
func (e *evacuation) stop(limit time.Duration, connected bool) handover.SourceAction {
	e.stopping = true
	if e.migrations == nil || limit <= 0 {
		return e.cancel("")
	}
	e.log.Info("asked to terminate; migrating the VM", "limit", limit)
	e.timeout = time.After(limit)
	e.controllerTimeout = min(limit/10, maxUnreachable)
	if connected {
		e.controllerTimeout = min(limit/10, maxFailOver)
	}
	e.controllerDeadline = time.Now().Add(e.controllerTimeout)
	return e.tell(handover.Ordered)
}

// expedite limits the time for an unreachable controller to maxUnreachable, even if it was connected before.
func (e *evacuation) expedite() {
	e.controllerTimeout = min(e.controllerTimeout, maxUnreachable)
	e.controllerDeadline = time.Now().Add(e.controllerTimeout)
	e.recheck = time.After(e.controllerTimeout)
}

// afterResult is checkController after the result of a step, which may show that the controller responds.
func (e *evacuation) afterResult(connected bool) handover.SourceAction {
	if !e.unreachable(connected) {
		e.controllerDeadline = time.Now().Add(e.controllerTimeout)
	}
	return e.checkController(connected)
}

// checkController shuts the guest down if the process is stopping and the controller was unreachable for too long.
func (e *evacuation) checkController(connected bool) handover.SourceAction {
	if !e.stopping || e.shutDown || !e.unreachable(connected) || time.Now().Before(e.controllerDeadline) {
		return handover.Nothing
	}
	e.log.Warn("the controller does not respond; shutting down the guest instead of migrating it")
	return e.cancel("The controller did not answer.")
}

// unreachable reports whether the controller was asked for a target and cannot be reached. If it can be reached, it has
// no target yet.
func (e *evacuation) unreachable(connected bool) bool { return e.migrations.Unanswered() && !connected }

// cancel shuts the guest down instead of migrating it, unless the migration has been committed.
func (e *evacuation) cancel(reason string) handover.SourceAction {
	e.shutDown = true
	if reason != "" {
		e.shutdownReason = reason
	}
	if e.migrations == nil {
		return handover.Nothing
	}
	return e.tell(handover.Cancelled)
}
