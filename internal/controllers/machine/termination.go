package machine

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// termination is the way of a Machine that is being deleted.
func (c *Controller) termination() []flow.Step[*scope] {
	return []flow.Step[*scope]{
		{Name: "BeginTermination", Run: c.beginTermination},
		{Name: "AwaitSoleClaim", Run: c.awaitSoleClaim},
		{Name: "IdentifyInstance", Run: c.identifyInstance},
		{Name: "IdentifyNode", Run: c.identifyNode},
		{Name: "FindNode", Run: c.findNode},
		{Name: "AnnounceTermination", Run: c.announceTermination},
		{Name: "Cordon", Run: c.cordon},
		{Name: "Drain", Run: c.drain},
		{Name: "DeleteAttachments", Run: c.deleteAttachments},
		{Name: "DeleteInstance", Run: c.deleteInstance},
		{Name: "DeleteNode", Run: c.deleteNode},
		{Name: "RevokeToken", Run: c.revokeTokenOfUnjoined},
		{Name: "RemoveFinalizer", Run: c.removeFinalizer},
	}
}

func (c *Controller) beginTermination(_ context.Context, s *scope) flow.Result {
	if !controllerutil.ContainsFinalizer(s.machine, v1alpha1.FinalizerMCM) && !controllerutil.ContainsFinalizer(s.machine, v1alpha1.FinalizerLegacy) {
		return flow.Stop("the Machine is held by others only")
	}
	if s.machine.Status.CurrentStatus.Phase != v1alpha1.MachineTerminating {
		s.terminating()
	}
	return flow.Continue()
}

// awaitSoleClaim holds a deletion back that would take the VM from another object. Who of
// the two it belongs to, only a user can tell.
func (c *Controller) awaitSoleClaim(ctx context.Context, s *scope) flow.Result {
	if c.Engine.Deleting(s.key()) {
		return flow.Continue()
	}
	other, err := c.sharer(ctx, s.machine)
	if err != nil || other == "" {
		return flow.Fail(err)
	}
	sentence := fmt.Sprintf("VM %s "+messages.AlsoThatOf+" %s: clear spec.providerID of the one that it does not belong to.", s.machine.Spec.ProviderID, other)
	s.deletionImpossible(reasonFailedDelete, sentence, sayTerminating)
	return flow.Wait(time.Minute, sentence)
}

// deleteInstance has the driver remove the instance, and goes on when the driver says
// that it is gone.
func (c *Controller) deleteInstance(ctx context.Context, s *scope) flow.Result {
	if s.foreign != "" {
		return flow.Continue()
	}
	material, missing, err := c.material(ctx, s.machine)
	if err != nil {
		return flow.Fail(err)
	}
	if material.class == nil {
		return c.deletionWithoutClass(ctx, s, missing)
	}
	answer := c.Engine.Delete(instance.Request{Machine: s.machine, Class: material.class, Secret: material.secret})
	s.note(answer)
	switch answer.State {
	case instance.Gone:
		return flow.Continue()
	case instance.Remains:
		s.deletionWaits("The provider still has the VM.", sayDeletingVM)
		return flow.Wait(answer.Retry, "the VM to be gone")
	case instance.Failed:
		s.deletionFailed(answer.Failure, sayDeletingVM)
		return flow.Wait(answer.Retry, answer.Failure.Error())
	default:
		return c.deletionSilent(s, answer, sayDeletingVM)
	}
}

// deletionSilent waits for the driver to answer, and says so if it does not. The call may
// be the creation, which has to end first.
func (c *Controller) deletionSilent(s *scope, answer instance.Answer, marker string) flow.Result {
	wait := c.silent(answer)
	if wait <= 0 {
		s.deletionImpossible(reasonFailedDelete, sayNoAnswer+".", marker)
	}
	return flow.Wait(max(wait, 0), "the driver")
}

// deletionWithoutClass: a class that is in use cannot vanish, since it carries our
// finalizer. So a Machine that has neither class nor provider ID never had an instance,
// unless somebody took the finalizer off, or gave the class to another driver, while one
// was made: that call is awaited, and what it made is not forgotten.
func (c *Controller) deletionWithoutClass(ctx context.Context, s *scope, missing string) flow.Result {
	if s.machine.Spec.ProviderID == "" {
		answer := c.Engine.Abandon(s.key())
		if answer.State == instance.Underway {
			return c.deletionSilent(s, answer, sayDeletingVM)
		}
		taken, err := c.taken(ctx, s.machine, answer.Instance.ProviderID)
		if err != nil {
			return flow.Fail(err)
		}
		if taken != "" || answer.Instance.ProviderID == "" {
			return flow.Continue()
		}
		if err := c.recordFound(ctx, s, answer.Instance); err != nil {
			return flow.Fail(err)
		}
	}
	sentence := fmt.Sprintf("VM %s cannot be deleted: %s.", s.machine.Spec.ProviderID, missing)
	s.deletionImpossible(reasonFailedDelete, sentence, sayDeletingVM)
	return flow.Wait(0, sentence)
}

// deleteNode removes the node object. One that the cache does not show may have joined
// just now, hence the deletion is sent all the same.
func (c *Controller) deleteNode(ctx context.Context, s *scope) flow.Result {
	name := s.machine.Labels[v1alpha1.NodeLabelKey]
	if c.Target == nil || name == "" {
		return flow.Continue()
	}
	if !c.Target.Ready() {
		s.deletionWaits("VM deletion was successful. The target cluster does not answer.", sayDeleteNode)
		return flow.Wait(targetAway, "the target cluster")
	}
	found := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	err := c.Target.Client().Get(ctx, types.NamespacedName{Name: name}, found)
	if client.IgnoreNotFound(err) != nil {
		return flow.Fail(fmt.Errorf("reading node %s: %w", name, err))
	}
	if rival, err := c.rival(ctx, s.machine, found); err != nil || rival != nil {
		return flow.Fail(err)
	}
	if err == nil {
		if _, err := c.patchNode(ctx, found, release); client.IgnoreNotFound(err) != nil {
			return flow.Fail(err)
		}
	}
	if err := c.Target.Client().Delete(ctx, found); err != nil && !apierrors.IsNotFound(err) {
		return flow.Fail(fmt.Errorf("deleting node %s: %w", name, err))
	}
	c.nodes.Forget(client.ObjectKey{Name: name})
	c.registrations.Delete(name)
	return flow.Continue()
}

func release(n *corev1.Node) error {
	noderef.Release(n)
	return nil
}

// revokeTokenOfUnjoined deletes the bootstrap token of a Machine whose node never came.
func (c *Controller) revokeTokenOfUnjoined(ctx context.Context, s *scope) flow.Result {
	if c.Tokens == nil || len(s.machine.Status.Conditions) > 0 {
		return flow.Continue()
	}
	return flow.Fail(c.Tokens.Revoke(ctx, s.key()))
}

func (c *Controller) removeFinalizer(ctx context.Context, s *scope) flow.Result {
	err := c.patchMachine(ctx, s, func(machine *v1alpha1.Machine) {
		controllerutil.RemoveFinalizer(machine, v1alpha1.FinalizerMCM)
		controllerutil.RemoveFinalizer(machine, v1alpha1.FinalizerLegacy)
	})
	if client.IgnoreNotFound(err) != nil {
		return flow.Fail(err)
	}
	s.gone = true
	c.released.Store(s.key(), s.machine.UID)
	s.deleted()
	return flow.Continue()
}
