package capi

import (
	"context"
	"fmt"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/controllers/capi/marks"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// steps are the way of an object through a pass.
func (c *Controller) steps(machine *infrav1.MillwrightMachine) []flow.Step[*scope] {
	deleting := !machine.DeletionTimestamp.IsZero()
	switch others := machine.Spec.Driver != c.Driver; {
	case others && deleting:
		return c.othersTermination()
	case others:
		return c.othersLifecycle()
	case deleting:
		return c.termination()
	}
	return c.lifecycle()
}

// othersLifecycle is for what is of another driver. That has a manager of its own, and two
// that both wrote would do so in turns.
func (c *Controller) othersLifecycle() []flow.Step[*scope] {
	return []flow.Step[*scope]{
		{Name: "AwaitOwner", Run: c.awaitOwner},
		{Name: "ExplainDriver", Run: c.explainDriver},
	}
}

// othersTermination is the same for what is being deleted.
func (c *Controller) othersTermination() []flow.Step[*scope] {
	return []flow.Step[*scope]{
		{Name: "EndIfReleased", Run: c.endIfReleased},
		{Name: "FindOwners", Run: c.findOwners},
		{Name: "LeaveToOthers", Run: c.leaveToOthers},
	}
}

func (c *Controller) driverMessage(s *scope) string {
	return fmt.Sprintf("spec.driver is %q, and this manager has the driver %q only", s.machine.Spec.Driver, c.Driver)
}

// explainDriver says that nobody knows the driver, unless anybody has said anything.
func (c *Controller) explainDriver(ctx context.Context, s *scope) flow.Result {
	if err := c.findCluster(ctx, s); err != nil {
		return flow.Fail(err)
	}
	if s.ready() != nil || leftAlone(s) {
		return flow.Stop("it is of another driver")
	}
	return s.refuse(infrav1.ReasonUnknownDriver, c.driverMessage(s))
}

// leaveToOthers leaves a VM to the manager that has its driver. Where there cannot be a VM,
// the object needs nobody. If there may be one, and nobody sees to it, that is said.
func (c *Controller) leaveToOthers(ctx context.Context, s *scope) flow.Result {
	switch {
	case leftAlone(s):
		return flow.Stop("it is paused")
	case !marks.Begun(s.machine):
		return c.removeFinalizer(ctx, s)
	case s.undeletableBefore(), s.notReadyFor(infrav1.ReasonDeleting, infrav1.ReasonDeletionFailed):
		return flow.Stop("it is said how the deletion stands")
	}
	if left := s.machine.DeletionTimestamp.Add(slowRetry).Sub(s.now); left > 0 {
		return flow.Wait(left, "the manager that has its driver")
	}
	s.undeletable(infrav1.ReasonUnknownDriver, c.driverMessage(s))
	return flow.Stop("it is of another driver")
}

// leftAlone reports whether nobody may write the object.
func leftAlone(s *scope) bool { return core.Moved(s.machine) || core.Paused(s.cluster, s.machine) }
