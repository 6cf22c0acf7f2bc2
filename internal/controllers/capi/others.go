package capi

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/controllers/capi/marks"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// otherDriver returns the steps for an object whose spec.driver is not one of the manager's drivers. Another manager
// has that driver. If both managers wrote the object, they would overwrite each other's changes forever.
func (c *Controller) otherDriver(deleting bool) []flow.Step[*scope] {
	if deleting {
		return []flow.Step[*scope]{
			{Name: "StopIfReleased", Run: c.stopIfReleased},
			{Name: "FindOwners", Run: c.findOwners},
			{Name: "LeaveToOtherManager", Run: c.leaveToOtherManager},
		}
	}
	return []flow.Step[*scope]{
		{Name: "AwaitOwner", Run: c.awaitOwner},
		{Name: "ReportUnknownDriver", Run: c.reportUnknownDriver},
	}
}

// reportUnknownDriver sets the condition Ready, unless another manager has set it.
func (c *Controller) reportUnknownDriver(_ context.Context, s *scope) flow.Result {
	if s.ready() != nil || s.pausedOrMoved() {
		return flow.Stop("the object belongs to another driver")
	}
	return s.refuse(infrav1.ReasonUnknownDriver, c.unknownDriver(s))
}

func (c *Controller) unknownDriver(s *scope) string {
	return fmt.Sprintf("spec.driver is %q, but this manager has only %s", s.machine.Spec.Driver, c.Drivers)
}

// leaveToOtherManager leaves the deletion to the manager that has the driver. It removes the finalizer if there
// cannot be a VM. If there may be one and no manager writes the status, it reports that.
func (c *Controller) leaveToOtherManager(ctx context.Context, s *scope) flow.Result {
	switch {
	case s.pausedOrMoved():
		return flow.Stop("the object is paused")
	case !marks.Begun(s.machine):
		return c.removeFinalizer(ctx, s)
	case s.undeletableBefore(), s.notReadyFor(infrav1.ReasonDeleting, infrav1.ReasonDeletionFailed):
		return flow.Stop("the status shows the progress of the deletion")
	}
	if remaining := s.machine.DeletionTimestamp.Add(slowRetry).Sub(s.now); remaining > 0 {
		return flow.Wait(remaining, "another manager may have the driver")
	}
	s.undeletable(infrav1.ReasonUnknownDriver, c.unknownDriver(s))
	return flow.Stop("the object belongs to another driver")
}

func (s *scope) pausedOrMoved() bool {
	return core.Moved(s.machine) || core.Paused(s.cluster, s.machine)
}

// stopIfOtherInstallation stops for an object whose creation was begun by a manager of another installation. With the
// name of this installation, the driver would not find the VM and would create a second one, or report the first one
// as gone. If both managers wrote the object, they would overwrite each other's changes, so this one does not change
// a status that the other one has written. Each process sends the event once.
func (c *Controller) stopIfOtherInstallation(_ context.Context, s *scope) flow.Result {
	other, found := s.machine.Annotations[infrav1.AnnotationInstallation]
	if !found || other == c.Installation {
		return flow.Continue()
	}
	message := fmt.Sprintf("The VM belongs to installation %q, but this manager belongs to installation %q; start the manager with --installation=%s",
		other, c.Installation, other)
	isNew := s.memory.sent.News("installation", message)
	switch {
	case s.ready() == nil || s.notReadyFor(infrav1.ReasonOtherInstallation):
		s.refuse(infrav1.ReasonOtherInstallation, message)
	case isNew:
		s.event(corev1.EventTypeWarning, infrav1.ReasonOtherInstallation, message)
	}
	return flow.Stop("the object belongs to another installation")
}
