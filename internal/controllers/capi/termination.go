package capi

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// termination is the way of a MillwrightMachine that is being deleted. It needs neither
// Machine nor Cluster nor MillwrightCluster: whoever deletes may have removed them first.
func (c *Controller) termination() []flow.Step[*scope] {
	return []flow.Step[*scope]{
		{Name: "EndIfReleased", Run: c.endIfReleased},
		{Name: "LeaveOtherInstallation", Run: c.leaveOtherInstallation},
		{Name: "FindOwners", Run: c.findOwners},
		{Name: "RespectPause", Run: c.respectPause},
		{Name: "Gather", Run: c.gatherForDeletion},
		{Name: "IdentifyInstance", Run: c.identifyInstance},
		{Name: "AwaitFinding", Run: c.awaitFinding},
		{Name: "AwaitSoleClaim", Run: c.awaitSoleClaim},
		{Name: "DeleteInstance", Run: c.deleteInstance},
		{Name: "RemoveFinalizer", Run: c.removeFinalizer},
	}
}

func (c *Controller) endIfReleased(_ context.Context, s *scope) flow.Result {
	if !controllerutil.ContainsFinalizer(s.machine, infrav1.Finalizer) {
		return flow.Stop("it is held by others only")
	}
	return flow.Continue()
}

// findOwners finds Machine and Cluster, as far as they are there.
func (c *Controller) findOwners(ctx context.Context, s *scope) flow.Result {
	if _, err := c.findOwner(ctx, s); err != nil {
		return flow.Fail(err)
	}
	return flow.Fail(c.findCluster(ctx, s))
}

// gatherForDeletion collects what the driver needs to find the VM. Where that is missing, a
// VM that may exist holds the object: nobody could ever find it again.
func (c *Controller) gatherForDeletion(ctx context.Context, s *scope) flow.Result {
	if !begun(s.machine) {
		return flow.Continue()
	}
	if recorded := s.machine.Status.ProviderID; recorded != "" {
		s.machine.Spec.ProviderID = recorded // whatever was written there by hand
	}
	lacking, err := c.collect(ctx, s)
	switch {
	case err != nil:
		return flow.Fail(err)
	case lacking.sentence != "":
		return s.undeletable(lacking.reason, lacking.sentence)
	}
	return flow.Continue()
}

// identifyInstance finds out which VM is meant, if that was never stored: the answer to its
// creation may have been lost. Nothing is deleted by its name alone, since a driver may know
// a VM of that name that is not ours.
func (c *Controller) identifyInstance(ctx context.Context, s *scope) flow.Result {
	if !begun(s.machine) || s.machine.Spec.ProviderID != "" || c.Engine.Deleting(s.key()) {
		return flow.Continue()
	}
	answer := c.Engine.Find(s.request())
	switch answer.State {
	case instance.Exists:
		return c.identified(ctx, s, answer.Instance.ProviderID)
	case instance.Gone: // or the driver cannot look, and is asked to delete by name
		if s.askedAnew() {
			return c.unfound(s)
		}
		return flow.Continue()
	case instance.Failed:
		if s.neverMade(answer.Failure) {
			return c.removeFinalizer(ctx, s)
		}
		s.deletionFailed(answer.Failure)
		return flow.Wait(s.retry(answer.Retry), answer.Failure.Error())
	default:
		return c.awaitDeletion(s, answer)
	}
}

// awaitFinding has a driver that is asked with another specification than before find the VM
// first. One that looks in another place would say that there is none, and it would run on.
// Once it is found, it is deleted as always.
func (c *Controller) awaitFinding(_ context.Context, s *scope) flow.Result {
	if s.gone || !begun(s.machine) || s.machine.Spec.ProviderID == "" || !s.askedAnew() || c.Engine.Deleting(s.key()) {
		return flow.Continue()
	}
	answer := c.Engine.Ensure(s.request()) // makes nothing where there is an ID
	switch {
	case answer.State == instance.Exists, answer.Instance.ProviderID != "":
		s.foundAsAskedFor()
		return flow.Continue()
	case answer.State == instance.Lost:
		return c.unfound(s)
	case answer.State == instance.Failed:
		s.deletionFailed(answer.Failure)
		return flow.Wait(s.retry(answer.Retry), answer.Failure.Error())
	default:
		return c.awaitDeletion(s, answer)
	}
}

// unfound holds a deletion whose VM may be where the driver does not look any more.
func (c *Controller) unfound(s *scope) flow.Result {
	c.Engine.Forget(s.key()) // or it would say the same for ever
	return s.unfound()
}

// awaitDeletion waits for the driver's answer.
func (c *Controller) awaitDeletion(s *scope, answer instance.Answer) flow.Result {
	if !s.held() {
		s.deleting()
	}
	return c.awaitDriver(s, answer, infrav1.ReasonDeletionFailed)
}

// identified stores which VM is to go, so that the driver gets its ID.
func (c *Controller) identified(ctx context.Context, s *scope, providerID string) flow.Result {
	sentence, err := c.whose(ctx, s.machine, providerID, earlier)
	switch {
	case err != nil || sentence != "":
		return c.leave(ctx, s, sentence, err)
	case providerID == "":
		return flow.Continue()
	}
	s.machine.Spec.ProviderID = providerID
	s.objects.Machine.Spec.ProviderID = providerID
	s.foundAsAskedFor()
	if err := c.persistSpec(ctx, s); err != nil {
		return flow.Fail(err)
	}
	s.objects.Machine.Generation = s.machine.Generation
	return flow.Continue()
}

// leave ends the object without its VM, which is another's: this one never had any.
func (c *Controller) leave(ctx context.Context, s *scope, sentence string, err error) flow.Result {
	if err != nil {
		return flow.Fail(err)
	}
	s.explain(corev1.EventTypeNormal, infrav1.ReasonProviderIDTaken, sentence+"; it is left alone")
	return c.removeFinalizer(ctx, s)
}

// awaitSoleClaim holds a deletion back that would take the VM from another object. Whose it
// is, only a user can tell.
func (c *Controller) awaitSoleClaim(ctx context.Context, s *scope) flow.Result {
	if s.gone || !begun(s.machine) || c.Engine.Deleting(s.key()) {
		return flow.Continue()
	}
	if s.machine.Status.ProviderID == "" { // then the ID may be what a user wrote
		sentence, err := c.whose(ctx, s.machine, s.machine.Spec.ProviderID, recorded)
		if err != nil || sentence != "" {
			return c.leave(ctx, s, sentence, err)
		}
	}
	other, err := c.claimant(ctx, s.machine, s.machine.Spec.ProviderID, alive)
	switch {
	case err != nil:
		return flow.Fail(err)
	case other != "":
		return s.undeletable(infrav1.ReasonProviderIDTaken,
			fmt.Sprintf("VM %s is also that of %s: clear spec.providerID of the one that it does not belong to", s.machine.Spec.ProviderID, other))
	}
	return flow.Continue()
}

// deleteInstance has the driver remove the VM, and goes on when the driver says that it is
// gone.
func (c *Controller) deleteInstance(ctx context.Context, s *scope) flow.Result {
	if s.gone || !begun(s.machine) {
		return flow.Continue()
	}
	if s.machine.Annotations[infrav1.AnnotationInstanceSpec] != s.stored.Annotations[infrav1.AnnotationInstanceSpec] {
		if err := c.persistSpec(ctx, s); err != nil { // or nobody would know tomorrow that it was there
			return flow.Fail(err)
		}
	}
	s.deleting()
	answer := c.Engine.Delete(s.request())
	if answer.LastKnownState != nil {
		s.machine.Status.LastKnownState = *answer.LastKnownState
	}
	switch answer.State {
	case instance.Gone:
		s.explain(corev1.EventTypeNormal, infrav1.ReasonDeleted, "The VM is gone")
		return flow.Continue()
	case instance.Remains:
		return flow.Wait(answer.Retry, "the VM to be gone")
	case instance.Failed:
		if s.neverMade(answer.Failure) {
			return flow.Continue()
		}
		s.deletionFailed(answer.Failure)
		return flow.Wait(s.retry(answer.Retry), answer.Failure.Error())
	default:
		return c.awaitDeletion(s, answer)
	}
}

func (s *scope) request() instance.Request {
	return instance.Request{Machine: s.objects.Machine, Class: s.objects.Class, Secret: s.objects.Secret}
}

func (c *Controller) removeFinalizer(ctx context.Context, s *scope) flow.Result {
	if err := c.releaseSecrets(ctx, s); err != nil {
		return flow.Fail(err)
	}
	if !controllerutil.RemoveFinalizer(s.machine, infrav1.Finalizer) {
		return flow.Continue()
	}
	if err := c.persistSpec(ctx, s); client.IgnoreNotFound(err) != nil {
		return flow.Fail(err)
	}
	s.gone = true
	return flow.Continue()
}
