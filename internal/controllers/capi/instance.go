package capi

import (
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/internal/controllers/capi/marks"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance/steps"
	"github.com/millwright-dev/millwright/internal/lifecycle/ownership"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// adapter adapts a MillwrightMachine to the steps that both APIs have in common.
type adapter struct {
	c *Controller
	s *scope
}

// Owner implements steps.Adapter.
func (a adapter) Owner() ownership.Owner {
	return ownership.OfMillwrightMachine(a.s.machine, a.s.machine.Spec.ProviderID)
}

// Request implements steps.Adapter.
func (a adapter) Request() instance.Request {
	request := a.s.request()
	if a.s.machine.DeletionTimestamp.IsZero() {
		request.Prepare = a.c.prepare(a.s.machine.Namespace, *a.s.owner.Spec.Bootstrap.DataSecretName, a.s.inputs.Secret)
	}
	return request
}

// Record implements steps.Adapter. During a deletion it writes the ID immediately, so that the next call to the
// driver has it.
func (a adapter) Record(ctx context.Context, found instance.Instance, location string) flow.Result {
	s := a.s
	deleting := !s.machine.DeletionTimestamp.IsZero()
	if deleting && found.ProviderID == "" {
		return flow.Continue()
	}
	if s.machine.Spec.ProviderID == "" {
		s.machine.Spec.ProviderID = found.ProviderID
	}
	marks.Found(s.machine, s.inputs.Class)
	s.locate(location)
	if !deleting {
		return flow.Continue()
	}
	s.inputs.Machine.Spec.ProviderID = found.ProviderID
	if err := a.c.persistSpec(ctx, s); err != nil {
		return flow.Fail(err)
	}
	s.inputs.Machine.Generation = s.machine.Generation
	return flow.Continue()
}

// Locate implements steps.Adapter.
func (a adapter) Locate(ctx context.Context, location string) flow.Result {
	a.s.locate(location)
	return flow.Fail(a.c.persistSpec(ctx, a.s))
}

// locate records where the VM is created or was found, for the next write and the next request.
func (s *scope) locate(location string) {
	if location == "" {
		return
	}
	for _, object := range []metav1.Object{s.machine, s.inputs.Machine} {
		annotations := maps.Clone(object.GetAnnotations())
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[driver.AnnotationLocation] = location
		object.SetAnnotations(annotations)
	}
}

// Conflict implements steps.Adapter.
func (a adapter) Conflict(ctx context.Context, step steps.Step, providerID string, other ownership.Owner) flow.Result {
	switch step {
	case steps.Ensure:
		a.c.Engine.Forget(a.s.key())
		return a.s.refuseOwned(providerID, other)
	case steps.AwaitSoleOwner:
		return a.s.undeletable(infrav1.ReasonProviderIDTaken,
			fmt.Sprintf("VM %s also belongs to %s; clear spec.providerID of the object that does not own the VM", providerID, other))
	default:
		return a.c.releaseWithoutInstance(ctx, a.s, providerID, other)
	}
}

// Exists implements steps.Reporter.
func (a adapter) Exists(_ context.Context, result instance.Exists) flow.Result {
	a.s.recordState(result.LastKnownState)
	a.s.adopt(result.Instance)
	return flow.Continue()
}

// Lost implements steps.Reporter.
func (a adapter) Lost(context.Context) flow.Result {
	a.c.Engine.Forget(a.s.key())
	a.s.lost()
	return flow.Wait(checkRetryInterval, "the driver cannot find the VM")
}

// Gone implements steps.Reporter. If there is no VM to identify, the driver may be unable to search for it, and is
// called to delete it by name.
func (a adapter) Gone(_ context.Context, step steps.Step, result instance.Gone) flow.Result {
	a.s.recordState(result.LastKnownState)
	switch {
	case step != steps.Identify:
		a.s.event(corev1.EventTypeNormal, infrav1.ReasonDeleted, "The VM is deleted")
	case marks.FoundWithOther(a.s.machine, a.s.inputs.Class):
		return a.c.notFound(a.s)
	}
	return flow.Continue()
}

// Remains implements steps.Reporter.
func (a adapter) Remains(_ context.Context, result instance.Remains) flow.Result {
	a.s.recordState(result.LastKnownState)
	return flow.Wait(result.Retry, "the VM is being deleted")
}

// Failed implements steps.Reporter. The engine retries the call.
func (a adapter) Failed(ctx context.Context, step steps.Step, result instance.Failed) flow.Result {
	s, failure := a.s, result.Failure
	s.recordState(result.LastKnownState)
	switch {
	case step == steps.Ensure:
		if mayExist(failure) {
			delete(s.machine.Annotations, infrav1.AnnotationCreationSpec)
		}
		s.creationFailed(failure)
	case !s.neverCreated(failure):
		s.driverFailed(infrav1.ReasonDeletionFailed, failure)
	case step == steps.Identify:
		return a.c.removeFinalizer(ctx, s)
	default:
		return flow.Continue()
	}
	return flow.Wait(s.retry(result.Retry), failure.Error())
}

// Await implements steps.Reporter.
func (a adapter) Await(_ context.Context, step steps.Step, result instance.Pending) flow.Result {
	if step == steps.Ensure {
		return a.s.awaitDriver(result, infrav1.ReasonCreationFailed)
	}
	return a.s.awaitDeletion(result)
}

// recordState stores the driver's LastKnownState unless it is nil.
func (s *scope) recordState(lastKnownState *string) {
	if lastKnownState != nil {
		s.machine.Status.LastKnownState = *lastKnownState
	}
}

func (s *scope) awaitDeletion(pending instance.Pending) flow.Result {
	if !s.undeletableBefore() {
		s.deleting()
	}
	return s.awaitDriver(pending, infrav1.ReasonDeletionFailed)
}

// awaitDriver waits for the driver, and reports if the driver does not respond.
func (s *scope) awaitDriver(pending instance.Pending, reason string) flow.Result {
	remaining := pending.SilentIn(s.now)
	if remaining <= 0 {
		s.refuse(reason, fmt.Sprintf("The driver has not responded for %v", pending.Silence))
	}
	return flow.Wait(max(remaining, 0), "the driver has not responded yet")
}
