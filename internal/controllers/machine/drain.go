package machine

import (
	"cmp"
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
	"github.com/millwright-dev/millwright/internal/reconcile/edge"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// drainer drains the nodes of Machines that are deleted, preserved or updated in place.
type drainer struct {
	*Options
	nodes *nodeClient
	timer drainTimer
}

// events returns the sources of the events that drains wait for.
func (d *drainer) events() drain.Events {
	return drain.Events{Draining: mapper{cache: d.Client}.draining, Drainer: d.Drain.Drainer}
}

// drainNode advances a drain that is not part of a deletion. Without a Drainer, it is done immediately.
func (d *drainer) drainNode(ctx context.Context, s *scope, timed timedDrain, node *corev1.Node) (drain.Report, error) {
	if d.Drain.Drainer == nil {
		return drain.Report{Done: true}, nil
	}
	timing, err := d.timer.read(ctx, s, timed, node.Status.Conditions)
	if err != nil {
		return drain.Report{}, err
	}
	report, err := d.request(ctx, s, node.Name, timing.since, timing.force)
	if err != nil {
		return drain.Report{}, err
	}
	return report, s.storeTiming(ctx, timing)
}

func (d *drainer) request(ctx context.Context, s *scope, node string, since time.Time, force drain.Force) (drain.Report, error) {
	return d.Drain.Drainer.Drain(ctx, drain.Request{
		Machine:         s.key(),
		Node:            node,
		Since:           since,
		Timeout:         timeouts.Drain(s.machine, d.Drain.Timeout).Duration,
		MaxEvictRetries: timeouts.MaxEvictRetries(s.machine, d.Drain.MaxEvictRetries),
		Force:           force,
	})
}

// forget discards the state of a completed drain. If the node is drained again, it has different Pods.
func (d *drainer) forget(s *scope) {
	if d.Drain.Drainer != nil {
		d.Drain.Drainer.Forget(s.key())
	}
}

const topicForce = "force"

// storeTiming sends a warning if the drain may not be forced yet, and stores when the drain restarted.
func (s *scope) storeTiming(ctx context.Context, timing drainTiming) error {
	s.requeueWithin(timing.wait)
	if timing.delayed != "" {
		s.events.warnOnce(topicForce, pendingEvent{reason: reasonDelayed, message: timing.delayed})
	}
	if timing.restarted.IsZero() {
		return nil
	}
	return s.patch(ctx, func(machine *v1alpha1.Machine) {
		metav1.SetMetaDataAnnotation(&machine.ObjectMeta, v1alpha1.AnnotationKeyDrainSince, timing.restarted.UTC().Format(time.RFC3339))
	})
}

// findNode reads the node to drain. Once the VM is being deleted, the node is not drained any longer, because
// its kubelet cannot terminate Pods.
func (d *drainer) findNode(ctx context.Context, s *scope) flow.Result {
	name := s.machine.NodeName()
	switch {
	case d.Target == nil || d.Engine.Deleting(s.key()):
		return flow.Continue()
	case !d.Target.Ready() && (name != "" || s.machine.Spec.ProviderID != ""): // the target may have the node of a VM
		return d.awaitTarget(s)
	case name == "":
		return flow.Continue()
	}
	found, foreign, err := d.nodes.read(ctx, s, name)
	if err != nil || found == nil || foreign != nil {
		return flow.Fail(err)
	}
	if err := d.timeDeletion(ctx, s, found.Status.Conditions); err != nil {
		return flow.Fail(err)
	}
	if !d.nodes.Fresh(found) {
		return flow.Wait(expectations.StaleCache, "the cache to show what was written to the node")
	}
	s.node = found
	return flow.Continue()
}

// timeDeletion sets when the drain of a deletion began, and whether and why it is forced.
func (d *drainer) timeDeletion(ctx context.Context, s *scope, conditions []corev1.NodeCondition) error {
	deletion := drainOfDeletion(s.machine)
	if d.Drain.Drainer == nil {
		s.force, s.drainSince = d.timer.forcedByUser(deletion), deletion.began
		return nil
	}
	timing, err := d.timer.read(ctx, s, deletion, conditions)
	if err != nil {
		return err
	}
	s.force, s.drainSince = timing.force, timing.since
	return s.storeTiming(ctx, timing)
}

// awaitTarget waits for the target cluster, since a node that cannot be read may still have Pods. It does not
// wait if a user forces the drain.
func (d *drainer) awaitTarget(s *scope) flow.Result {
	s.force = d.timer.forcedByUser(drainOfDeletion(s.machine))
	if d.Drain.Drainer == nil || s.force != drain.NotForced {
		return flow.Continue()
	}
	s.drainFailed(v1alpha1.CauseTargetUnavailable, "the target cluster does not respond")
	return flow.Wait(targetRetry, "the target cluster")
}

// announce sets the node's condition Terminating.
func (d *drainer) announce(ctx context.Context, s *scope) flow.Result {
	if s.node == nil {
		return flow.Continue()
	}
	healthy := d.nodes.healthy(s.machine, s.node)
	return s.markedForDrain(ctx, d.nodes.patchStatus(ctx, &s.node, func(n *corev1.Node) { noderef.SetTerminating(n, !healthy, s.now) }))
}

// cordon makes the node unschedulable. If there is nothing to drain, the same request removes the node from load
// balancers.
func (d *drainer) cordon(ctx context.Context, s *scope) flow.Result {
	if s.node == nil || s.node.Spec.Unschedulable {
		return flow.Continue()
	}
	drained, err := d.nothingToDrain(ctx, s)
	if err != nil {
		return flow.Fail(err)
	}
	if drained {
		err := d.nodes.retire(ctx, &s.node, s.now)
		if !apierror.Denied(err) {
			return s.markedForDrain(ctx, err)
		}
	}
	return s.markedForDrain(ctx, d.nodes.cordon(ctx, &s.node))
}

// nothingToDrain reports whether the drain will not wait for any Pods. If the cache is out of date, the drain may find
// some nevertheless.
func (d *drainer) nothingToDrain(ctx context.Context, s *scope) (bool, error) {
	if d.Drain.Drainer == nil || s.force != drain.NotForced {
		return true, nil
	}
	return d.Drain.Drainer.IsEmpty(ctx, s.node.Name)
}

// leaveLoadBalancers removes the drained node from load balancers before its VM is deleted. It only retries after a
// conflict, since the VM must be deleted even if the API server does not accept the taint.
func (d *drainer) leaveLoadBalancers(ctx context.Context, s *scope) flow.Result {
	if s.node == nil {
		return flow.Continue()
	}
	switch err := d.nodes.retire(ctx, &s.node, s.now); {
	case err == nil:
	case apierror.Gone(err):
		s.node = nil
	case edge.Outdated(err):
		return flow.Fail(err)
	default:
		ctrl.LoggerFrom(ctx).Info("cannot remove the node from load balancers; continuing with the deletion of its VM", "node", s.node.Name, "err", err.Error())
	}
	return flow.Continue()
}

// markedForDrain returns the result of a write to the node, which must succeed unless the drain is forced.
func (s *scope) markedForDrain(ctx context.Context, err error) flow.Result {
	switch {
	case err == nil:
	case apierror.Gone(err):
		s.node = nil
	case s.force == drain.NotForced && edge.Outdated(err):
		return flow.Fail(err)
	case s.force == drain.NotForced:
		s.drainFailed(v1alpha1.CauseDrainFailed, err.Error())
		return flow.Fail(edge.Reported(err))
	default:
		ctrl.LoggerFrom(ctx).Info("cannot mark the node for its drain; continuing because the drain is forced", "node", s.node.Name, "err", err.Error())
	}
	return flow.Continue()
}

// drain evicts the Pods of the node.
func (d *drainer) drain(ctx context.Context, s *scope) flow.Result {
	if s.node == nil || d.Drain.Drainer == nil {
		return flow.Continue()
	}
	report, err := d.request(ctx, s, s.node.Name, s.drainSince, s.force)
	if err != nil {
		return flow.Fail(err)
	}
	s.force = report.Force
	if report.Force == drain.NotForced {
		s.reportForcedPods(report, cause{name: v1alpha1.CauseDrainForced, step: draining.name})
	}
	switch {
	case report.Done && report.Force == drain.NotForced:
		s.drained()
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

// deleteAttachments deletes the VolumeAttachments of a node whose drain was forced.
func (d *drainer) deleteAttachments(ctx context.Context, s *scope) flow.Result {
	if s.node == nil || d.Drain.Drainer == nil || s.force == drain.NotForced {
		return flow.Continue()
	}
	done, err := d.Drain.Drainer.DeleteAttachments(ctx, s.node.Name)
	switch {
	case err != nil:
		return flow.Fail(err)
	case !done:
		return flow.Wait(attachmentsRetry, "the deletion of the node's VolumeAttachments")
	}
	s.deletionWaits("", deletingInstance)
	return flow.Continue()
}
