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

// adapter is a MillwrightMachine in the steps that both APIs share.
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

// Record implements steps.Adapter. In a deletion the ID is written at once, so that the driver
// gets it.
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

// locate notes where the VM is made or was found, for the next write and the next request.
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
			fmt.Sprintf("VM %s is also that of %s: clear spec.providerID of the one that it does not belong to", providerID, other))
	default:
		return a.c.endWithoutInstance(ctx, a.s, providerID, other)
	}
}

// Report implements steps.Adapter.
func (a adapter) Report(ctx context.Context, step steps.Step, answer instance.Answer) flow.Result {
	if answer.LastKnownState != nil {
		a.s.machine.Status.LastKnownState = *answer.LastKnownState
	}
	switch {
	case step == steps.Ensure:
		return a.reportCreation(answer)
	case step != steps.Identify:
		return a.s.reportDeletion(answer)
	case answer.State == instance.Gone && marks.FoundWithOther(a.s.machine, a.s.inputs.Class):
		return a.c.notFound(a.s)
	case answer.State == instance.Gone: // or the driver cannot look for it, and is called to delete by name
		return flow.Continue()
	case answer.State == instance.Failed && a.s.neverCreated(answer.Failure):
		return a.c.removeFinalizer(ctx, a.s)
	}
	return a.s.reportDeletion(answer)
}

func (a adapter) reportCreation(answer instance.Answer) flow.Result {
	s := a.s
	switch answer.State {
	case instance.Exists:
		s.adopt(answer.Instance)
		return flow.Continue()
	case instance.Lost:
		a.c.Engine.Forget(s.key())
		s.lost()
		return flow.Wait(checkSoon, "the VM to be found again")
	case instance.Failed: // the engine calls the driver again, in its time
		if mayExist(answer.Failure) {
			delete(s.machine.Annotations, infrav1.AnnotationCreationSpec)
		}
		s.creationFailed(answer.Failure)
		return flow.Wait(s.retry(answer.Retry), answer.Failure.Error())
	default:
		return s.awaitDriver(answer, infrav1.ReasonCreationFailed)
	}
}

func (s *scope) reportDeletion(answer instance.Answer) flow.Result {
	switch answer.State {
	case instance.Gone:
		s.event(corev1.EventTypeNormal, infrav1.ReasonDeleted, "The VM is gone")
		return flow.Continue()
	case instance.Remains:
		return flow.Wait(answer.Retry, "the VM to be gone")
	case instance.Failed:
		if s.neverCreated(answer.Failure) {
			return flow.Continue()
		}
		s.driverFailed(infrav1.ReasonDeletionFailed, answer.Failure)
		return flow.Wait(s.retry(answer.Retry), answer.Failure.Error())
	default:
		return s.awaitDeletion(answer)
	}
}

func (s *scope) awaitDeletion(answer instance.Answer) flow.Result {
	if !s.undeletableBefore() {
		s.deleting()
	}
	return s.awaitDriver(answer, infrav1.ReasonDeletionFailed)
}

// awaitDriver waits for the driver to answer, and reports if it does not.
func (s *scope) awaitDriver(answer instance.Answer, reason string) flow.Result {
	left := answer.SilentIn(s.now)
	if left <= 0 {
		s.refuse(reason, fmt.Sprintf("The driver has not answered for %v", instance.Silence))
	}
	return flow.Wait(max(left, 0), "the driver")
}
