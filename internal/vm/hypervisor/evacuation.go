package hypervisor

import (
	"log/slog"
	"time"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/departure"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/handover"
)

const (
	// maxUnreachable is how long to wait for an unreachable controller. It is short because the whole installation
	// may be shutting down.
	maxUnreachable = 2 * time.Second
	// maxFailOver replaces maxUnreachable if the controller was connected when the process was asked to terminate:
	// another replica of the controller may be starting.
	maxFailOver = time.Minute
	// maxForcedTime is how long before the end of the time for migrating a copy is forced to complete. It includes the
	// time in which the guest is stopped.
	maxForcedTime = 2 * time.Minute
)

// evacuation moves the guest to another hypervisor when the controller requests it, or when the process is asked
// to terminate. If the guest cannot be moved in time, it requests a shutdown instead. The zero value cannot
// migrate the guest.
//
// The methods return the action that the hypervisor must take; see hypervisor.apply.
type evacuation struct {
	migrations *departure.Departure // nil if live migration is disabled
	log        *slog.Logger
	// requested is true while the controller requests, in its response to the run lease, that the VM moves.
	requested bool
	// shutdownTime is how long the guest and the process may take to terminate. It is left when the time for migrating
	// has run out.
	shutdownTime time.Duration
	// stopping is true once the process was asked to terminate, at stoppingSince.
	stopping      bool
	stoppingSince time.Time
	// limit is the time for migrating, from stoppingSince on. timeout receives a value when it has run out.
	limit   time.Duration
	timeout <-chan time.Time
	// controllerTimeout is how long the controller may be unreachable before the guest is shut down instead of
	// migrated. controllerDeadline is when that time has run out.
	controllerTimeout  time.Duration
	controllerDeadline time.Time
	// recheck receives a value when controllerDeadline has passed after expedite.
	recheck <-chan time.Time
	// shutDown is true if the guest must shut down once no migration is in progress.
	shutDown bool
	// shutdownReason explains to users why the guest shuts down instead of migrating. It is empty if the controller
	// decided that.
	shutdownReason string
	// committed is true if another hypervisor may run the guest.
	committed bool
}

func (e *evacuation) close() {
	if e.migrations != nil {
		e.migrations.Close()
	}
}

// idle reports whether no migration is in progress.
func (e *evacuation) idle() bool { return e.migrations == nil || e.migrations.Idle() }

// controlsQEMU reports whether a migration controls whether QEMU runs the guest.
func (e *evacuation) controlsQEMU() bool { return e.migrations != nil && e.migrations.ControlsQEMU() }

// mayRun reports whether the guest may run here.
func (e *evacuation) mayRun() bool { return e.migrations == nil || e.migrations.MayRun() }

func (e *evacuation) results() <-chan departure.Result {
	if e.migrations == nil {
		return nil
	}
	return e.migrations.Results()
}

// handle passes an event to the migration.
func (e *evacuation) handle(event handover.SourceEvent) handover.SourceAction {
	return e.record(e.migrations.Handle(event))
}

// take passes the result of a step to the migration.
func (e *evacuation) take(result departure.Result) handover.SourceAction {
	if limit := result.Grace - e.shutdownTime; e.stopping && result.Grace > 0 && limit < e.limit {
		e.log.Warn("the host gives this process less time than its grace period; shortening the time for the migration", "grace", result.Grace)
		e.leaveWithin(limit)
	}
	return e.record(e.migrations.Take(result))
}

func (e *evacuation) record(action handover.SourceAction) handover.SourceAction {
	switch action {
	case handover.ShutDown:
		e.shutDown = e.stopping
	case handover.Commit:
		e.committed = true
	}
	return action
}

// terminate stops the guest's run on this hypervisor because the controller requests it.
func (e *evacuation) terminate() handover.SourceAction {
	if e.migrations == nil {
		return handover.Kill
	}
	return e.handle(handover.Terminated)
}

// follow moves or keeps the VM as the controller requests, or continues a guest that has waited for its lease.
// disksLocated reports whether the disks can be attached. A guest whose disks were cut off together with the token
// of its previous run cannot use them without the new token.
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
		return e.handle(handover.Ordered)
	case !e.stopping:
		return e.handle(handover.Cancelled)
	}
	return handover.Nothing
}

// leased continues a guest that has waited for its lease.
func (e *evacuation) leased() handover.SourceAction { return e.handle(handover.Leased) }

// resumed records that the guest runs on this hypervisor again.
func (e *evacuation) resumed() {
	e.committed, e.requested, e.shutDown = false, false, e.stopping
}

// stop begins the termination of the process, which is killed after the grace period. The VM migrates if enough time
// would remain for a shutdown.
func (e *evacuation) stop(grace time.Duration, connected bool) handover.SourceAction {
	e.stopping, e.stoppingSince = true, time.Now()
	limit := grace - e.shutdownTime
	if e.migrations == nil || limit <= 0 {
		return e.cancel("")
	}
	e.log.Info("asked to terminate; migrating the VM", "limit", limit)
	e.leaveWithin(limit)
	e.controllerTimeout = min(limit/10, maxUnreachable)
	if connected {
		e.controllerTimeout = min(limit/10, maxFailOver)
	}
	e.controllerDeadline = time.Now().Add(e.controllerTimeout)
	return e.handle(handover.Ordered)
}

// leaveWithin sets the time for migrating. If it has run out already, the guest is shut down next.
func (e *evacuation) leaveWithin(limit time.Duration) {
	end := e.stoppingSince.Add(limit)
	e.limit, e.timeout = limit, time.After(time.Until(end))
	e.migrations.Leave(e.stoppingSince, end.Add(-min(max(0, limit)/4, maxForcedTime)))
}

// expedite limits the time for an unreachable controller to maxUnreachable, even if it was connected earlier.
func (e *evacuation) expedite() {
	e.controllerTimeout = min(e.controllerTimeout, maxUnreachable)
	e.controllerDeadline = time.Now().Add(e.controllerTimeout)
	e.recheck = time.After(e.controllerTimeout)
}

// afterResult calls checkController after the result of a step, which may show that the controller responds.
func (e *evacuation) afterResult(connected bool) handover.SourceAction {
	if !e.unreachable(connected) {
		e.controllerDeadline = time.Now().Add(e.controllerTimeout)
	}
	return e.checkController(connected)
}

// checkController shuts the guest down if the process is stopping and the controller has been unreachable for too
// long.
func (e *evacuation) checkController(connected bool) handover.SourceAction {
	if !e.stopping || e.shutDown || !e.unreachable(connected) || time.Now().Before(e.controllerDeadline) {
		return handover.Nothing
	}
	e.log.Warn("the controller does not respond; shutting down the guest instead of migrating it")
	return e.cancel("The controller did not respond.")
}

// unreachable reports whether the controller was asked for a target and cannot be reached. If it can be reached,
// it does not have a target yet.
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
	return e.handle(handover.Cancelled)
}
