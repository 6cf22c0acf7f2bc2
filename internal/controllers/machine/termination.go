package machine

import (
	"cmp"
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machine/draintime"
	"github.com/millwright-dev/millwright/internal/controllers/machine/passevents"
	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
	"github.com/millwright-dev/millwright/internal/lifecycle/nodes"
	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

func (c *Controller) termination() []flow.Step[*scope] {
	return []flow.Step[*scope]{
		{Name: "BeginTermination", Run: c.beginTermination},
		{Name: "AwaitSoleOwner", Run: func(ctx context.Context, s *scope) flow.Result {
			return c.instances().AwaitSoleOwner(ctx, adapter{c: c, s: s})
		}},
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

// deleteNode deletes the node also if the cache does not show it: it may have joined just now. It
// deletes the one that was found to be the Machine's, and no other that has taken its name.
func (c *Controller) deleteNode(ctx context.Context, s *scope) flow.Result {
	name := s.machine.Labels[v1alpha1.NodeLabelKey]
	if c.Target == nil || name == "" {
		return flow.Continue()
	}
	if !c.Target.Ready() {
		s.deletionWaits("VM deletion was successful. The target cluster does not answer.", deletingNode)
		return flow.Wait(targetAway, "the target cluster")
	}
	found, other, err := c.readNode(ctx, s, name)
	if err == nil && found == nil && other == nil {
		if found, err = c.askForNode(ctx, name); found != nil {
			other, err = c.notOurs(ctx, s, found, true)
		}
	}
	if err != nil || found == nil || other != nil {
		return flow.Fail(err)
	}
	err = c.nodes.Patch(ctx, c.Target.Client(), &found, func(n *corev1.Node) error {
		noderef.Release(n)
		return nil
	})
	if client.IgnoreNotFound(err) != nil {
		return flow.Fail(err)
	}
	err = c.Target.Client().Delete(ctx, found, client.Preconditions{UID: &found.UID})
	if client.IgnoreNotFound(err) != nil {
		return flow.Fail(fmt.Errorf("deleting node %s: %w", name, err))
	}
	c.nodes.Forget(client.ObjectKey{Name: name})
	return flow.Continue()
}

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
	sentence := "There was no VM to delete"
	switch id := s.machine.Spec.ProviderID; {
	case s.ownedByOther != "":
		sentence = s.ownedByOther + "; it is left alone"
	case id != "":
		sentence = fmt.Sprintf("VM %s and its node are gone", id)
	}
	s.events.Add(corev1.EventTypeNormal, reasonDeleted, passevents.Cause{}, sentence)
	return flow.Gone("the finalizer is removed")
}

// identifyNode finds the node of a Machine that names none: the VM may have joined although the
// answer to its creation was lost.
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
		return flow.Fail(c.recordNode(ctx, s, instance.Instance{NodeName: name}, ""))
	}
	return c.identify(ctx, s)
}

// findNode reads the node to drain; none once the VM is being deleted, as no kubelet would end its
// pods.
func (c *Controller) findNode(ctx context.Context, s *scope) flow.Result {
	name := s.machine.Labels[v1alpha1.NodeLabelKey]
	switch {
	case c.Target == nil || c.Engine.Deleting(s.key()):
		return flow.Continue()
	case !c.Target.Ready() && (name != "" || s.machine.Spec.ProviderID != ""): // its node may be known there only
		return c.awaitTarget(s)
	case name == "":
		return flow.Continue()
	}
	found, other, err := c.readNode(ctx, s, name)
	if err != nil || found == nil || other != nil {
		return flow.Fail(err)
	}
	if err := c.timeDrain(ctx, s, found.Status.Conditions); err != nil {
		return flow.Fail(err)
	}
	if !c.nodes.Fresh(found) {
		return flow.Wait(expectations.StaleCache, "the cache to show what was written to the node")
	}
	s.node = found
	return flow.Continue()
}

// awaitTarget waits for the target unless the drain is forced by a user: a node that nobody can see is
// not empty.
func (c *Controller) awaitTarget(s *scope) flow.Result {
	s.force = draintime.OfDeletion(s.machine).Asked(c.Drain.Timeout)
	if c.Drain.Drainer == nil || s.force != drain.NotForced {
		return flow.Continue()
	}
	s.drainFailed(v1alpha1.CauseTargetUnavailable, "the target cluster does not answer")
	return flow.Wait(targetAway, "the target cluster")
}

func (c *Controller) announceTermination(ctx context.Context, s *scope) flow.Result {
	if s.node == nil {
		return flow.Continue()
	}
	unhealthy := !noderef.Healthy(s.node.Status.Conditions, noderef.BadConditions(s.machine, c.NodeConditions))
	return c.marked(ctx, s, c.nodes.PatchStatus(ctx, c.Target.Client(), &s.node, func(n *corev1.Node) { noderef.SetTerminating(n, unhealthy, s.now) }))
}

func (c *Controller) cordon(ctx context.Context, s *scope) flow.Result {
	if s.node == nil {
		return flow.Continue()
	}
	return c.marked(ctx, s, c.nodes.Patch(ctx, c.Target.Client(), &s.node, func(n *corev1.Node) error {
		n.Spec.Unschedulable = true
		return nil
	}))
}

// marked goes on after a write to the node, which has to succeed unless the drain is forced.
func (c *Controller) marked(ctx context.Context, s *scope, err error) flow.Result {
	switch {
	case err == nil:
	case apierrors.IsNotFound(err):
		s.node = nil
	case s.force == drain.NotForced:
		if !apierrors.IsConflict(err) {
			s.drainFailed(v1alpha1.CauseDrainFailed, err.Error())
		}
		return flow.Fail(err)
	default:
		ctrl.LoggerFrom(ctx).Info("the drain is forced although the node could not be marked", "node", s.node.Name, "err", err.Error())
	}
	return flow.Continue()
}

func (c *Controller) drain(ctx context.Context, s *scope) flow.Result {
	if s.node == nil || c.Drain.Drainer == nil {
		return flow.Continue()
	}
	report, err := c.Drain.Drainer.Drain(ctx, drain.Request{
		Machine:         s.key(),
		Node:            s.node.Name,
		Since:           s.drainSince,
		Timeout:         timeouts.Drain(s.machine, c.Drain.Timeout).Duration,
		MaxEvictRetries: timeouts.MaxEvictRetries(s.machine, c.Drain.MaxEvictRetries),
		Force:           s.force,
	})
	if err != nil {
		return flow.Fail(err)
	}
	s.force = report.Force
	if pods := report.Forced(); report.Force == drain.NotForced && pods != "" { // evictions of a drain that is not forced itself
		why := passevents.Cause{Name: v1alpha1.CauseDrainForced, Step: draining.name}
		s.events.AddToBoth(s.node, corev1.EventTypeWarning, reasonForcedDrain, why, "Deleted without regard to pod disruption budgets: "+pods)
	}
	switch {
	case report.Done && report.Force == drain.NotForced:
		if s.memory.draining { // nothing is said of a node without pods
			s.memory.draining = false
			s.events.Add(corev1.EventTypeNormal, reasonDrained, passevents.Cause{Step: deletingInstance.name}, fmt.Sprintf("The pods of node %s are gone", s.node.Name))
		}
		s.deletionWaits("Drain successful.", deletingInstance)
		return flow.Continue()
	case report.Done:
		s.forceDrained(report)
		return flow.Continue()
	}
	problem := report.Problem()
	if problem != "" {
		s.drainFailed(v1alpha1.CauseDrainFailed, problem)
	} else {
		s.drainWaits(report.Summary())
	}
	return flow.Wait(report.Wait, cmp.Or(report.Summary(), problem))
}

const attachmentsRetry = 5 * time.Second

// deleteAttachments detaches the volumes of a node whose drain was forced.
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
