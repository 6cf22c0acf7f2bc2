package capi

import (
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/capi/marks"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/lifecycle/ownership"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// termination returns the steps of a MillwrightMachine that is being deleted. They do not need the Machine, the
// Cluster or the MillwrightCluster, which may already be deleted.
func (c *Controller) termination() []flow.Step[*scope] {
	return []flow.Step[*scope]{
		{Name: "StopIfReleased", Run: c.stopIfReleased},
		{Name: "StopIfOtherInstallation", Run: c.stopIfOtherInstallation},
		{Name: "FindOwners", Run: c.findOwners},
		{Name: "RespectPause", Run: c.respectPause},
		{Name: "ReadInputs", Run: c.readInputsForDeletion},
		{Name: "IdentifyInstance", Run: c.identifyInstance},
		{Name: "VerifyInstance", Run: c.verifyInstance},
		{Name: "AwaitSoleOwner", Run: c.awaitSoleOwner},
		{Name: "DeleteInstance", Run: c.deleteInstance},
		{Name: "RemoveFinalizer", Run: c.removeFinalizer},
	}
}

func (c *Controller) stopIfReleased(_ context.Context, s *scope) flow.Result {
	if !controllerutil.ContainsFinalizer(s.machine, infrav1.Finalizer) {
		return flow.Stop("only the finalizers of other controllers remain")
	}
	return flow.Continue()
}

// readInputsForDeletion reads what the driver needs to find the VM. If something is missing and there may be a VM,
// the object is kept, because otherwise the VM could never be found again.
func (c *Controller) readInputsForDeletion(ctx context.Context, s *scope) flow.Result {
	if !marks.Begun(s.machine) {
		return flow.Continue()
	}
	if recorded := s.machine.Status.ProviderID; recorded != "" {
		s.machine.Spec.ProviderID = recorded // a user may have changed it
	}
	missing, err := c.readInputs(ctx, s)
	if missing != nil {
		return s.undeletable(missing.Reason, missing.Message)
	}
	return flow.Fail(err)
}

// identifyInstance finds the provider ID if it was never stored, for example because the response to the creation was
// lost. A VM is never deleted by its name alone, because the VM of another object may have the same name.
func (c *Controller) identifyInstance(ctx context.Context, s *scope) flow.Result {
	if !marks.Begun(s.machine) || s.machine.Spec.ProviderID != "" || c.Engine.Deleting(s.key()) {
		return flow.Continue()
	}
	return c.instances.Identify(ctx, adapter{c, s})
}

// verifyInstance calls the driver to find the VM before it is deleted with a different spec than the one with which
// it was last found. A driver that searches in another place would report that there is no VM, and the VM would keep
// running.
func (c *Controller) verifyInstance(_ context.Context, s *scope) flow.Result {
	if !marks.Begun(s.machine) || s.machine.Spec.ProviderID == "" || !marks.FoundWithOther(s.machine, s.inputs.Class) || c.Engine.Deleting(s.key()) {
		return flow.Continue()
	}
	result := c.Engine.Ensure(s.request()) // does not create a VM if there is a provider ID
	switch r := result.(type) {
	case instance.Exists:
		return s.foundAgain(r)
	case instance.Failed:
		if r.Uninitialized != nil {
			return s.foundAgain(*r.Uninitialized)
		}
		s.driverFailed(infrav1.ReasonDeletionFailed, r.Failure)
		return flow.Wait(s.retry(r.Retry), r.Failure.Error())
	case instance.Lost:
		return c.notFound(s)
	}
	return s.awaitDeletion(result.(instance.Pending))
}

// foundAgain records that the driver has found the VM with the current spec.
func (s *scope) foundAgain(exists instance.Exists) flow.Result {
	marks.Found(s.machine, s.inputs.Class)
	s.locate(exists.Location)
	return flow.Continue()
}

// notFound stops a deletion whose VM may be in a place where the driver does not search any more.
func (c *Controller) notFound(s *scope) flow.Result {
	c.Engine.Forget(s.key()) // otherwise it would return the same result forever
	changed := "spec"
	if ref := s.machine.Spec.MachineClassRef; ref != nil {
		changed = fmt.Sprintf("MachineClass %q or spec", ref.Name)
	}
	return s.undeletable(infrav1.ReasonSpecChanged, changed+" was changed since the driver last found the VM, and the driver cannot find it any more; "+
		"revert the change, or make sure that the VM is gone and remove the finalizer "+infrav1.Finalizer)
}

// awaitSoleOwner stops a deletion that would delete the VM of another object.
func (c *Controller) awaitSoleOwner(ctx context.Context, s *scope) flow.Result {
	if !marks.Begun(s.machine) || c.Engine.Deleting(s.key()) {
		return flow.Continue()
	}
	a := adapter{c, s}
	if s.machine.Status.ProviderID == "" { // a user may have set the ID in the spec
		ours := a.Owner()
		other, err := c.instances.Owners.Certain(ctx, ours, ours.ProviderID)
		switch {
		case err != nil:
			return flow.Fail(err)
		case other != nil:
			return c.releaseWithoutInstance(ctx, s, ours.ProviderID, *other)
		}
	}
	return c.instances.AwaitSoleOwner(ctx, a)
}

// releaseWithoutInstance removes the finalizer without deleting the VM, which belongs to another object.
func (c *Controller) releaseWithoutInstance(ctx context.Context, s *scope, providerID string, other ownership.Owner) flow.Result {
	s.event(corev1.EventTypeNormal, infrav1.ReasonProviderIDTaken, ownedMessage(providerID, other)+"; it is not deleted")
	return c.removeFinalizer(ctx, s)
}

// deleteInstance calls the driver to delete the VM, and continues when the driver reports that it is gone.
func (c *Controller) deleteInstance(ctx context.Context, s *scope) flow.Result {
	if !marks.Begun(s.machine) {
		return flow.Continue()
	}
	if !maps.Equal(s.machine.Annotations, s.stored.Annotations) {
		if err := c.persistSpec(ctx, s); err != nil { // so that a later process knows that the VM was found
			return flow.Fail(err)
		}
	}
	s.deleting()
	return c.instances.Delete(ctx, adapter{c, s})
}

func (c *Controller) removeFinalizer(ctx context.Context, s *scope) flow.Result {
	if err := c.releaseSecrets(ctx, s); err != nil {
		return flow.Fail(err)
	}
	if !controllerutil.RemoveFinalizer(s.machine, infrav1.Finalizer) {
		return flow.Continue()
	}
	if err := c.persistSpec(ctx, s); apierror.IgnoreGone(err) != nil {
		return flow.Fail(err)
	}
	return flow.Gone("the finalizer was removed")
}

// releaseSecrets removes the finalizer from the Secrets. It first marks the object, because a manager that starts
// after that could not search for the VM without the Secrets.
func (c *Controller) releaseSecrets(ctx context.Context, s *scope) error {
	keys, err := c.Secrets.OfMachine(ctx, s.machine)
	if err != nil || len(keys) == 0 {
		return err
	}
	if marks.Begun(s.machine) {
		marks.MarkInstanceGone(s.machine)
		if err := c.persistSpec(ctx, s); err != nil {
			return apierror.IgnoreGone(err)
		}
	}
	return c.Secrets.SettleAll(ctx, s.machine, false)
}
