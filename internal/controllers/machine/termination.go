package machine

import (
	"context"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
	"github.com/millwright-dev/millwright/internal/lifecycle/nodes"
	"github.com/millwright-dev/millwright/internal/lifecycle/ownership"
	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
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

// identifyNode finds out which node a Machine has that does not say it: the answer to its
// creation may have been lost, and the VM joined all the same.
func (c *Controller) identifyNode(ctx context.Context, s *scope) flow.Result {
	if c.Target == nil || s.machine.Labels[v1alpha1.NodeLabelKey] != "" || s.ownedByOther != "" || c.Engine.Deleting(s.key()) {
		return flow.Continue()
	}
	name, err := "", error(nil)
	if c.Target.Ready() {
		name, err = nodes.Marked(ctx, c.Target.Client(), s.machine)
	}
	switch {
	case err != nil:
		return flow.Fail(err)
	case name != "":
		return flow.Fail(c.recordNode(ctx, s, instance.Instance{NodeName: name}))
	}
	return c.identify(ctx, s)
}

// findNode reads the node that is to be emptied; none once the VM is being deleted, for
// then there is nobody left to end its pods.
func (c *Controller) findNode(ctx context.Context, s *scope) flow.Result {
	name := s.machine.Labels[v1alpha1.NodeLabelKey]
	if c.Target == nil || name == "" || c.Engine.Deleting(s.key()) {
		return flow.Continue()
	}
	if !c.Target.Ready() {
		s.force = c.forceOf(s, s.machine.Status.Conditions)
		return c.awaitTarget(s)
	}
	found := &corev1.Node{}
	if err := c.Target.Client().Get(ctx, client.ObjectKey{Name: name}, found); err != nil {
		if apierrors.IsNotFound(err) {
			return flow.Continue()
		}
		return flow.Fail(fmt.Errorf("reading node %s: %w", name, err))
	}
	if other, err := ownership.ConflictingNode(ctx, c.Client, s.machine, found); err != nil || other != nil {
		return flow.Fail(err) // its pods are none of this Machine's
	}
	s.force = c.forceOf(s, found.Status.Conditions)
	if !c.nodes.Fresh(found) {
		return flow.Wait(staleCache, "the cache to show what was written to the node")
	}
	s.node = found
	return flow.Continue()
}

// awaitTarget waits for a target that does not answer, as long as a drain may take. A
// deletion that is forced does not wait.
func (c *Controller) awaitTarget(s *scope) flow.Result {
	left := c.drainTimeout(s.machine).Ends(s.machine.DeletionTimestamp.Time).Sub(s.now)
	if c.Drain.Drainer == nil || s.force != drain.NotForced || left <= 0 {
		return flow.Continue()
	}
	s.drainFailed(v1alpha1.CauseTargetUnavailable, "the target cluster does not answer")
	return flow.Wait(min(left, targetAway), "the target cluster")
}

// forceOf reports whether the node is to be emptied by force, and why.
func (c *Controller) forceOf(s *scope, conditions []corev1.NodeCondition) drain.Force {
	requested, _ := strconv.ParseBool(s.machine.Labels[v1alpha1.LabelKeyForceDeletion])
	s.wakeWithin(drain.ForceDue(conditions, s.now))
	return drain.ForceFor(requested, conditions, s.now)
}

// announceTermination tells those who look at the node why it goes.
func (c *Controller) announceTermination(ctx context.Context, s *scope) flow.Result {
	if s.node == nil {
		return flow.Continue()
	}
	unhealthy := !noderef.Healthy(s.node.Status.Conditions, noderef.BadConditions(s.machine, c.NodeConditions))
	changed, err := c.nodes.PatchStatus(ctx, c.Target.Client(), s.node, func(n *corev1.Node) { noderef.SetTerminating(n, unhealthy, s.now) })
	return c.marked(ctx, s, changed, err)
}

// cordon keeps new pods away.
func (c *Controller) cordon(ctx context.Context, s *scope) flow.Result {
	if s.node == nil {
		return flow.Continue()
	}
	changed, err := c.nodes.Patch(ctx, c.Target.Client(), s.node, func(n *corev1.Node) error {
		n.Spec.Unschedulable = true
		return nil
	})
	return c.marked(ctx, s, changed, err)
}

// marked goes on after a write to the node. Without it no drain begins, unless it is
// forced.
func (c *Controller) marked(ctx context.Context, s *scope, changed *corev1.Node, err error) flow.Result {
	switch {
	case err == nil:
		s.node = changed
	case apierrors.IsNotFound(err):
		s.node = nil
	case s.force == drain.NotForced && s.now.Before(c.drainTimeout(s.machine).Ends(s.machine.DeletionTimestamp.Time)):
		if !apierrors.IsConflict(err) {
			s.drainFailed(v1alpha1.CauseDrainFailed, err.Error())
		}
		return flow.Fail(err)
	default:
		ctrl.LoggerFrom(ctx).Info("the node is emptied by force although it could not be marked", "node", s.node.Name, "err", err.Error())
	}
	return flow.Continue()
}

// drain empties the node, as far as that can be done now.
func (c *Controller) drain(ctx context.Context, s *scope) flow.Result {
	if s.node == nil || c.Drain.Drainer == nil {
		return flow.Continue()
	}
	report, err := c.Drain.Drainer.Drain(ctx, drain.Request{
		Machine:         s.key(),
		Node:            s.node.Name,
		Since:           s.machine.DeletionTimestamp.Time,
		Timeout:         c.drainTimeout(s.machine).Duration,
		MaxEvictRetries: timeouts.MaxEvictRetries(s.machine, c.Drain.MaxEvictRetries),
		Force:           s.force,
	})
	if err != nil {
		return flow.Fail(err)
	}
	s.force = report.Force
	if pods := report.Forced(); report.Force == drain.NotForced && pods != "" { // evictions of a drain that is not forced itself
		why := cause{name: v1alpha1.CauseDrainForced, step: draining.name}
		s.explainBoth(corev1.EventTypeWarning, reasonForcedDrain, why, "Deleted without regard to pod disruption budgets: "+pods)
	}
	switch {
	case report.Done && report.Force == drain.NotForced:
		s.drained()
		return flow.Continue()
	case report.Done:
		s.forceDrained(report)
		return flow.Continue()
	}
	if problem := report.Problem(); problem != "" {
		s.drainFailed(v1alpha1.CauseDrainFailed, problem)
	} else {
		s.drainWaits(report.Summary())
	}
	return flow.Wait(report.Wait, report.Summary())
}

// attachmentsRetry is when a node's attachments are looked at again at the latest.
const attachmentsRetry = 5 * time.Second

// deleteAttachments lets go of the volumes of a node whose pods were not waited for. Those
// of a node that was emptied in order are gone.
func (c *Controller) deleteAttachments(ctx context.Context, s *scope) flow.Result {
	if s.node == nil || c.Drain.Drainer == nil || s.force == drain.NotForced {
		return flow.Continue()
	}
	done, err := c.Drain.Drainer.DeleteAttachments(ctx, s.node.Name)
	switch {
	case err != nil:
		return flow.Fail(err)
	case !done:
		return flow.Wait(attachmentsRetry, "the volume attachments of the node")
	}
	s.deletionWaits("", deletingInstance)
	return flow.Continue()
}
