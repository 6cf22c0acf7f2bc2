package capi

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/capi/marks"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/lifecycle/ownership"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// termination returns the steps of a MillwrightMachine that is being deleted. It needs neither
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
		{Name: "AwaitSoleOwner", Run: c.awaitSoleOwner},
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
	if !marks.Begun(s.machine) {
		return flow.Continue()
	}
	if recorded := s.machine.Status.ProviderID; recorded != "" {
		s.machine.Spec.ProviderID = recorded // whatever was written there by hand
	}
	missed, err := c.collect(ctx, s)
	switch {
	case err != nil:
		return flow.Fail(err)
	case missed.message != "":
		return s.undeletable(missed.reason, missed.message)
	}
	return flow.Continue()
}

// identifyInstance finds out which VM is meant, if that was never stored: the answer to its
// creation may have been lost. Nothing is deleted by its name alone, since a driver may know
// a VM of that name that is not ours.
func (c *Controller) identifyInstance(ctx context.Context, s *scope) flow.Result {
	if !marks.Begun(s.machine) || s.machine.Spec.ProviderID != "" || c.Engine.Deleting(s.key()) {
		return flow.Continue()
	}
	return c.instances().Identify(ctx, adapter{c, s})
}

// awaitFinding has a driver that is asked with another specification than before find the VM
// first. One that looks in another place would say that there is none, and it would run on.
// Once it is found, it is deleted as always.
func (c *Controller) awaitFinding(_ context.Context, s *scope) flow.Result {
	if !marks.Begun(s.machine) || s.machine.Spec.ProviderID == "" || !marks.FoundWithOther(s.machine, s.objects.Class) || c.Engine.Deleting(s.key()) {
		return flow.Continue()
	}
	answer := c.Engine.Ensure(s.request()) // makes nothing where there is an ID
	switch {
	case answer.State == instance.Exists, answer.Instance.ProviderID != "":
		marks.Found(s.machine, s.objects.Class)
		return flow.Continue()
	case answer.State == instance.Lost:
		return c.unfound(s)
	case answer.State == instance.Failed:
		s.deletionFailed(answer.Failure)
		return flow.Wait(s.retry(answer.Retry), answer.Failure.Error())
	default:
		return s.awaitDeletion(answer)
	}
}

// unfound holds a deletion whose VM may be where the driver does not look any more.
func (c *Controller) unfound(s *scope) flow.Result {
	c.Engine.Forget(s.key()) // or it would say the same for ever
	return s.unfound()
}

// endWithoutInstance ends the object without its VM, which is another's: this one never had any.
func (c *Controller) endWithoutInstance(ctx context.Context, s *scope, providerID string, other ownership.Owner) flow.Result {
	s.explain(corev1.EventTypeNormal, infrav1.ReasonProviderIDTaken, ownedMessage(providerID, other)+"; it is left alone")
	return c.removeFinalizer(ctx, s)
}

// awaitSoleOwner holds a deletion back that would take the VM from another object.
func (c *Controller) awaitSoleOwner(ctx context.Context, s *scope) flow.Result {
	if !marks.Begun(s.machine) || c.Engine.Deleting(s.key()) {
		return flow.Continue()
	}
	ours := adapter{c, s}.Owner()
	if s.machine.Status.ProviderID == "" { // then the ID may be what a user wrote
		other, err := c.instances().Owners.Certain(ctx, ours, ours.ProviderID)
		switch {
		case err != nil:
			return flow.Fail(err)
		case other != nil:
			return c.endWithoutInstance(ctx, s, ours.ProviderID, *other)
		}
	}
	return c.instances().AwaitSoleOwner(ctx, adapter{c, s})
}

// deleteInstance has the driver remove the VM, and goes on when the driver says that it is
// gone.
func (c *Controller) deleteInstance(ctx context.Context, s *scope) flow.Result {
	if !marks.Begun(s.machine) {
		return flow.Continue()
	}
	if s.machine.Annotations[infrav1.AnnotationInstanceSpec] != s.stored.Annotations[infrav1.AnnotationInstanceSpec] {
		if err := c.persistSpec(ctx, s); err != nil { // or nobody would know tomorrow that it was there
			return flow.Fail(err)
		}
	}
	s.deleting()
	return c.instances().Delete(ctx, adapter{c, s})
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
	return flow.Gone("the finalizer is removed")
}
