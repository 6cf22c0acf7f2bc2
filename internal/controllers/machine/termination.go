package machine

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
	"github.com/millwright-dev/millwright/internal/lifecycle/ownership"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// termination returns the steps of a Machine that is being deleted.
func (c *Controller) termination() []flow.Step[*scope] {
	return []flow.Step[*scope]{
		{Name: "BeginTermination", Run: c.beginTermination},
		{Name: "AwaitSoleOwner", Run: c.awaitSoleOwner},
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
		s.deletionWaits("", identifying)
		s.phase(v1alpha1.MachineTerminating)
	}
	return flow.Continue()
}

// deleteNode removes the node object. One that the cache does not show may have joined
// just now, hence the deletion is sent all the same.
func (c *Controller) deleteNode(ctx context.Context, s *scope) flow.Result {
	name := s.machine.Labels[v1alpha1.NodeLabelKey]
	if c.Target == nil || name == "" {
		return flow.Continue()
	}
	if !c.Target.Ready() {
		s.deletionWaits("VM deletion was successful. The target cluster does not answer.", deletingNode)
		return flow.Wait(targetAway, "the target cluster")
	}
	found := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	err := c.Target.Client().Get(ctx, types.NamespacedName{Name: name}, found)
	if client.IgnoreNotFound(err) != nil {
		return flow.Fail(fmt.Errorf("reading node %s: %w", name, err))
	}
	if other, err := ownership.ConflictingNode(ctx, c.Client, s.machine, found); err != nil || other != nil {
		return flow.Fail(err)
	}
	if err == nil {
		if _, err := c.nodes.Patch(ctx, c.Target.Client(), found, func(n *corev1.Node) error {
			noderef.Release(n)
			return nil
		}); client.IgnoreNotFound(err) != nil {
			return flow.Fail(err)
		}
	}
	if err := c.Target.Client().Delete(ctx, found); err != nil && !apierrors.IsNotFound(err) {
		return flow.Fail(fmt.Errorf("deleting node %s: %w", name, err))
	}
	c.nodes.Forget(client.ObjectKey{Name: name})
	return flow.Continue()
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
	s.memory.released = s.machine.UID
	s.deleted()
	return flow.Gone("the finalizer is removed")
}
