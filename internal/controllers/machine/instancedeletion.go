package machine

import (
	"context"
	"fmt"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/lifecycle/nodes"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// awaitSoleOwner delays the deletion while another object also owns the instance.
func (i *instances) awaitSoleOwner(ctx context.Context, s *scope) flow.Result {
	return i.steps().AwaitSoleOwner(ctx, adapter{instances: i, s: s})
}

// identify finds the VM of a Machine without a provider ID, if objects of another API group may own VMs.
// Otherwise the driver might delete a VM of that group that has the same name.
func (i *instances) identify(ctx context.Context, s *scope) flow.Result {
	if i.OtherOwners == nil || s.machine.Spec.ProviderID != "" || i.Engine.Deleting(s.key()) {
		return flow.Continue()
	}
	return i.find(ctx, s)
}

// identifyNode finds the node of a Machine that does not name one. The VM may have joined although the response
// to its creation was lost.
func (i *instances) identifyNode(ctx context.Context, s *scope) flow.Result {
	if i.Target == nil || s.machine.NodeName() != "" || s.ownedByOther != "" || i.Engine.Deleting(s.key()) {
		return flow.Continue()
	}
	name, err := "", error(nil)
	if i.Target.Ready() {
		name, err = nodes.Marked(ctx, i.Target.Client(), s.machine)
	}
	switch {
	case err != nil:
		return flow.Fail(err)
	case name != "":
		return flow.Fail(s.recordNode(ctx, instance.Instance{NodeName: name}, ""))
	}
	return i.find(ctx, s)
}

// find looks up the Machine's instance with the driver and records it.
func (i *instances) find(ctx context.Context, s *scope) flow.Result {
	in, _, err := i.inputs.ofMachine(ctx, s.machine)
	if err != nil || in.class == nil {
		return flow.Fail(err)
	}
	return i.steps().Identify(ctx, adapter{instances: i, s: s, in: in})
}

// delete deletes the instance, unless another object owns it.
func (i *instances) delete(ctx context.Context, s *scope) flow.Result {
	if s.ownedByOther != "" {
		return flow.Continue()
	}
	in, missing, err := i.inputs.ofMachine(ctx, s.machine)
	switch {
	case err != nil:
		return flow.Fail(err)
	case in.awaited: // the VM may exist even if the Machine has no provider ID
		s.deletionImpossible(reasonFailedDelete, cause{name: v1alpha1.CauseInvalidClassInputs}, missing+".", deletingInstance)
		return flow.Wait(migrationCheck, missing)
	case in.class == nil:
		return i.deleteWithoutClass(ctx, s, missing)
	}
	return i.steps().Delete(ctx, adapter{instances: i, s: s, in: in})
}

// deleteWithoutClass deletes a Machine whose class does not exist or has no driver. Our finalizer keeps a class
// that is in use, so a Machine without a provider ID normally has no instance. The exception is a creation during
// which a user removed the finalizer or assigned the class to another driver; deleteWithoutClass waits for it.
func (i *instances) deleteWithoutClass(ctx context.Context, s *scope, missing string) flow.Result {
	if s.machine.Spec.ProviderID == "" {
		result := i.Engine.Abandon(s.key())
		if pending, ok := result.(instance.Pending); ok {
			return s.awaitDeletion(pending, deletingInstance)
		}
		exists, ok := result.(instance.Exists)
		if !ok {
			return flow.Continue()
		}
		other, err := i.steps().Owners.Conflicting(ctx, asOwner(s.machine), exists.Instance.ProviderID)
		if err != nil || other != nil {
			return flow.Fail(err)
		}
		if result := (adapter{instances: i, s: s}).Record(ctx, exists.Instance, exists.Location); result.StopsPass() {
			return result
		}
	}
	message := fmt.Sprintf("VM %s cannot be deleted: %s.", s.machine.Spec.ProviderID, missing)
	s.deletionImpossible(reasonFailedDelete, cause{name: v1alpha1.CauseInvalidClassInputs}, message, deletingInstance)
	return flow.Wait(0, message)
}

// awaitDeletion waits for a driver call, and records if the call does not return in time. The call may be the
// creation, which must return before the deletion.
func (s *scope) awaitDeletion(pending instance.Pending, step deletionStep) flow.Result {
	wait := pending.SilentIn(s.now)
	if wait <= 0 {
		s.deletionImpossible(reasonFailedDelete, cause{name: v1alpha1.CauseDriverSilent}, driverSilent(pending)+".", step)
	}
	return flow.Wait(max(wait, 0), "the driver")
}
