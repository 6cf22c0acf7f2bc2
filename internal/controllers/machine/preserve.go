package machine

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
	"github.com/millwright-dev/millwright/internal/lifecycle/preservation"
	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
)

// preserver preserves Machines, and marks their nodes.
type preserver struct {
	*Options
	nodes  *nodeClient
	drains *drainer
}

// preserveScope is the scope of a pass over a Machine that is or was preserved.
type preserveScope struct {
	*scope
	facts preservation.Facts
	plan  preservation.Plan
	// preserved is the node as it was last written; nil if there is none.
	preserved *corev1.Node
	// problem is why Pods could not be evicted; empty if there was no problem.
	problem string
	// drained reports that this pass completed a drain. forced is a message if the drain was forced.
	drained bool
	forced  string
}

// run starts, continues or stops the preservation of a Machine that is not being deleted. It runs after the steps
// of the pass, since it depends on the phase that they set. It records the expiry last, and also after an error,
// so that a crash before that repeats the incomplete work.
func (p *preserver) run(ctx context.Context, base *scope) error {
	s := &preserveScope{scope: base, preserved: base.node, facts: preservation.Facts{
		Machine: base.machine, Node: base.node, Now: base.now, Timeout: timeouts.Preserve(base.machine, p.PreserveTimeout).Duration,
	}}
	if !preservation.Concerns(s.facts) || base.node != nil && !base.node.DeletionTimestamp.IsZero() {
		return nil
	}
	if base.node == nil {
		if err := p.findNode(ctx, s); err != nil {
			return err
		}
	}
	err := p.carryOut(ctx, s)
	s.record()
	return err
}

// findNode reads the node if no step has found it. The node is hidden if the cache is stale, the target cluster is
// unavailable, or the node is not the Machine's.
func (p *preserver) findNode(ctx context.Context, s *preserveScope) error {
	name := s.machine.NodeName()
	switch {
	case p.Target == nil || name == "":
		return nil
	case !p.Target.Ready() || s.nodeOfOther:
		s.facts.Hidden = true
		return nil
	}
	found, foreign, err := p.nodes.read(ctx, s.scope, name)
	if err != nil {
		return err
	}
	if found != nil && foreign == nil && p.nodes.Fresh(found) && found.DeletionTimestamp.IsZero() {
		s.facts.Node, s.preserved = found, found
		return nil
	}
	s.facts.Hidden = foreign != nil || found != nil
	return nil
}

// carryOut carries out the plan as far as is possible now.
func (p *preserver) carryOut(ctx context.Context, s *preserveScope) error {
	s.plan = preservation.Decide(s.facts)
	switch s.plan.Action {
	case preservation.Stop:
		return p.stop(ctx, s)
	case preservation.Preserve:
		s.requeueWithin(s.plan.Expiry.Sub(s.now))
		if err := s.annotate(ctx); err != nil {
			return err
		}
		return apierror.IgnoreGone(p.preserve(ctx, s)) // the node may no longer exist
	}
	err := p.unmark(ctx, s, func(node *corev1.Node) {
		if s.plan.RemoveAnnotation {
			delete(node.Annotations, v1alpha1.AnnotationKeyPreserve)
		}
	})
	if err != nil {
		return err
	}
	return s.annotate(ctx)
}

// annotate stores the effective annotations on the Machine. They protect it before the expiry is stored.
func (s *preserveScope) annotate(ctx context.Context) error {
	return s.patch(ctx, func(machine *v1alpha1.Machine) {
		setOrDelete(machine, v1alpha1.AnnotationKeyPreserve, s.plan.Own)
		setOrDelete(machine, v1alpha1.AnnotationKeyLastAppliedPreserve, s.plan.LastApplied)
	})
}

func setOrDelete(machine *v1alpha1.Machine, key, value string) {
	if value == "" {
		delete(machine.Annotations, key)
		return
	}
	metav1.SetMetaDataAnnotation(&machine.ObjectMeta, key, value)
}

func (p *preserver) preserve(ctx context.Context, s *preserveScope) error {
	if s.preserved == nil || s.facts.Hidden {
		return nil
	}
	failed := s.machine.Status.CurrentStatus.Phase == v1alpha1.MachineFailed
	err := p.nodes.patch(ctx, &s.preserved, func(node *corev1.Node) error {
		preservation.Mark(node, failed, s.now)
		return nil
	})
	if err != nil {
		return err
	}
	state := preservation.NotNeeded
	switch {
	case !failed:
	case preservation.Drained(s.preserved):
		state = preservation.Earlier
	default:
		if state, err = p.drain(ctx, s); err != nil || state == preservation.NotNeeded {
			return err
		}
	}
	return p.nodes.patchStatus(ctx, &s.preserved, func(node *corev1.Node) {
		preservation.SetPreserved(node, s.plan, state, s.now)
	})
}

// drain advances the drain of a node. It returns NotNeeded while the drain makes progress.
func (p *preserver) drain(ctx context.Context, s *preserveScope) (preservation.Drain, error) {
	if p.Drain.Drainer == nil {
		return preservation.Done, nil
	}
	current := &s.machine.Status.CurrentStatus
	began := current.LastUpdateTime.Time
	if current.PreserveExpiryTime == nil {
		began = s.now // the expiry is set now, too
	}
	report, err := p.drains.drainNode(ctx, s.scope, drainOfPreserved(s.machine, began), s.preserved)
	if err != nil {
		return preservation.NotNeeded, err
	}
	s.problem = report.Problem()
	if report.Done {
		p.drains.forget(s.scope)
		s.drained = true
		if report.Force != drain.NotForced && !report.NodeGone {
			s.forced = drainWasForced(s.preserved, report.Force)
		}
		return preservation.Done, nil
	}
	s.requeueWithin(report.Wait)
	if s.problem != "" {
		return preservation.Failing, nil
	}
	return preservation.NotNeeded, nil
}

// stop stops a preservation. It sets the node's condition after it removes the other marks, since the condition
// means that the preservation has stopped completely.
func (p *preserver) stop(ctx context.Context, s *preserveScope) error {
	err := p.unmark(ctx, s, func(node *corev1.Node) { preservation.Unmark(node, s.plan.RemoveAnnotation) })
	if err == nil && s.preserved != nil {
		err = apierror.IgnoreGone(p.nodes.patchStatus(ctx, &s.preserved, func(node *corev1.Node) { preservation.SetStopped(node, s.now) }))
	}
	if err == nil {
		err = s.annotate(ctx)
	}
	if err != nil {
		s.plan.Expiry = s.machine.Status.CurrentStatus.PreserveExpiryTime // the preservation has not stopped
		return err
	}
	p.drains.forget(s.scope)
	return nil
}

func (p *preserver) unmark(ctx context.Context, s *preserveScope, change func(*corev1.Node)) error {
	if s.preserved == nil {
		return nil
	}
	return apierror.IgnoreGone(p.nodes.patch(ctx, &s.preserved, func(node *corev1.Node) error {
		change(node)
		return nil
	}))
}

const (
	reasonPreserved        = "Preserved"
	reasonPreservationOver = "PreservationStopped"
	reasonInvalidPreserve  = "InvalidPreserveValue"

	topicPreserveDrain = "preserve-drain"
)

// record sets until when the Machine is preserved, and copies the node's condition Preserved.
func (s *preserveScope) record() {
	current := &s.machine.Status.CurrentStatus
	before := current.PreserveExpiryTime
	if s.plan.Action != preservation.None && !before.Equal(s.plan.Expiry) {
		current.PreserveExpiryTime, current.LastUpdateTime = s.plan.Expiry, metav1.NewTime(s.now)
	}
	s.machine.Status.Conditions = withPreserved(s.machine.Status.Conditions, s.preserved)
	s.addEvents(before != nil)
}

// addEvents adds the events about a preservation. wasPreserved reports whether it began before this pass.
func (s *preserveScope) addEvents(wasPreserved bool) {
	invalid := s.plan.Invalid
	if invalid != "" {
		invalid = "The " + invalid
	}
	s.events.warnOrForget(reasonInvalidPreserve, pendingEvent{reason: reasonInvalidPreserve, message: invalid})
	switch {
	case s.plan.Action == preservation.Preserve && !wasPreserved:
		s.events.add(corev1.EventTypeNormal, reasonPreserved, cause{}, fmt.Sprintf("The machine is preserved until %s (%s)", s.plan.Expiry.UTC().Format(time.RFC3339), s.plan.Value))
	case s.plan.Action == preservation.Stop && s.machine.Status.CurrentStatus.PreserveExpiryTime == nil:
		s.events.add(corev1.EventTypeNormal, reasonPreservationOver, cause{}, "The machine is no longer preserved")
	}
	if s.forced != "" {
		s.events.addToBoth(s.node, corev1.EventTypeWarning, reasonForcedDrain, cause{name: v1alpha1.CauseDrainForced}, s.forced)
	}
	switch {
	case s.problem != "":
		s.events.warnOnce(topicPreserveDrain, pendingEvent{reason: reasonFailedDrain, message: "The node of the preserved machine cannot be drained yet: " + s.problem})
	case s.drained:
		s.memory.sent.Over(topicPreserveDrain)
		s.events.add(corev1.EventTypeNormal, reasonDrained, cause{}, podsGone(s.preserved))
	}
}

// withPreserved returns the Machine's conditions with the node's condition Preserved.
func withPreserved(machine []corev1.NodeCondition, node *corev1.Node) []corev1.NodeCondition {
	if node == nil {
		return machine
	}
	is, was := noderef.Condition(node.Status.Conditions, v1alpha1.NodePreserved), noderef.Condition(machine, v1alpha1.NodePreserved)
	if is == nil {
		return machine
	}
	copied := short(*is) // the guest can write it, too
	switch {
	case was != nil && preservation.Same(copied, *was):
		return machine
	case was == nil:
		return append(slices.Clone(machine), copied)
	}
	next := slices.Clone(machine)
	*noderef.Condition(next, v1alpha1.NodePreserved) = copied
	return next
}
