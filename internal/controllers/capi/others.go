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

// otherDriver returns the steps for an object whose spec.driver is not the manager's. Another
// manager has that driver; if both wrote the object, they would do so in turns forever.
func (c *Controller) otherDriver(deleting bool) []flow.Step[*scope] {
	if deleting {
		return []flow.Step[*scope]{
			{Name: "EndIfReleased", Run: c.endIfReleased},
			{Name: "FindOwners", Run: c.findOwners},
			{Name: "LeaveToOtherManager", Run: c.leaveToOtherManager},
		}
	}
	return []flow.Step[*scope]{
		{Name: "AwaitOwner", Run: c.awaitOwner},
		{Name: "ReportUnknownDriver", Run: c.reportUnknownDriver},
	}
}

// reportUnknownDriver writes the condition Ready, unless another manager has written it.
func (c *Controller) reportUnknownDriver(_ context.Context, s *scope) flow.Result {
	if s.ready() != nil || s.pausedOrMoved() {
		return flow.Stop("it is of another driver")
	}
	return s.refuse(infrav1.ReasonUnknownDriver, c.unknownDriver(s))
}

func (c *Controller) unknownDriver(s *scope) string {
	return fmt.Sprintf("spec.driver is %q, and this manager has %s only", s.machine.Spec.Driver, c.Drivers)
}

// leaveToOtherManager leaves the deletion to the manager that has the driver. It removes the
// finalizer if there cannot be a VM, and reports if there may be one and no manager writes the
// status.
func (c *Controller) leaveToOtherManager(ctx context.Context, s *scope) flow.Result {
	switch {
	case s.pausedOrMoved():
		return flow.Stop("it is paused")
	case !marks.Begun(s.machine):
		return c.removeFinalizer(ctx, s)
	case s.undeletableBefore(), s.notReadyFor(infrav1.ReasonDeleting, infrav1.ReasonDeletionFailed):
		return flow.Stop("the status shows the progress of the deletion")
	}
	if left := s.machine.DeletionTimestamp.Add(slowRetry).Sub(s.now); left > 0 {
		return flow.Wait(left, "the manager that has its driver")
	}
	s.undeletable(infrav1.ReasonUnknownDriver, c.unknownDriver(s))
	return flow.Stop("it is of another driver")
}

func (s *scope) pausedOrMoved() bool {
	return core.Moved(s.machine) || core.Paused(s.cluster, s.machine)
}

// leaveOtherInstallation ends the reconcile of an object whose creation a manager of another
// installation began: with this one's name, the driver would not find the VM and create a second
// one, or report the first as gone. If both managers wrote the object, they would do so in turns, so
// the status that the other one has written stays; the event is sent once by each process.
func (c *Controller) leaveOtherInstallation(_ context.Context, s *scope) flow.Result {
	theirs, named := s.machine.Annotations[infrav1.AnnotationInstallation]
	if !named || theirs == c.Installation {
		return flow.Continue()
	}
	message := fmt.Sprintf("The VM is that of installation %q, and this manager is of installation %q: start it with --installation=%s",
		theirs, c.Installation, theirs)
	news := s.memory.sent.News("installation", message)
	switch {
	case s.ready() == nil || s.notReadyFor(infrav1.ReasonOtherInstallation):
		s.refuse(infrav1.ReasonOtherInstallation, message)
	case news:
		s.event(corev1.EventTypeWarning, infrav1.ReasonOtherInstallation, message)
	}
	return flow.Stop("it is another installation's")
}
