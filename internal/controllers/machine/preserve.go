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

// preserveScope is the scope of a pass over a Machine that is preserved, or was.
type preserveScope struct {
	*scope
	facts preservation.Facts
	plan  preservation.Plan
	// preserved is the node as it was written last; nil if there is none.
	preserved *corev1.Node
	// problem is why pods could not be evicted; empty if they could, or need not.
	problem string
	// drained reports that this pass completed a drain. forced is a sentence if the drain was forced.
	drained bool
	forced  string
}

// run starts, continues or stops the preservation of a Machine that is not being deleted. It follows
// the steps of the pass, however they ended, since it depends on the phase that they found. The expiry is
// recorded also after an error, and last: a crash before repeats what was not completed.
func (p *preserver) run(ctx context.Context, of *scope) error {
	s := &preserveScope{scope: of, preserved: of.node, facts: preservation.Facts{
		Machine: of.machine, Node: of.node, Now: of.now, Timeout: timeouts.Preserve(of.machine, p.PreserveTimeout).Duration,
	}}
	if !preservation.Concerns(s.facts) || of.node != nil && !of.node.DeletionTimestamp.IsZero() {
		return nil
	}
	if of.node == nil {
		if err := p.findNode(ctx, s); err != nil {
			return err
		}
	}
	err := p.carryOut(ctx, s)
	s.record()
	return err
}

// findNode reads the node that no step has found. It is hidden if the cache is stale, the target is
// unavailable, or the node is another's.
func (p *preserver) findNode(ctx context.Context, s *preserveScope) error {
	name := s.machine.Labels[v1alpha1.NodeLabelKey]
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

// carryOut takes the plan as far as is possible now.
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
		return apierror.IgnoreGone(p.preserve(ctx, s)) // the node may not exist anymore
	}
	err := p.unmark(ctx, s, func(node *corev1.Node) {
		if s.plan.Unwish {
			delete(node.Annotations, v1alpha1.AnnotationKeyPreserve)
		}
	})
	if err != nil {
		return err
	}
	return s.annotate(ctx)
}

// annotate stores which annotations count. They protect the Machine before the expiry is stored.
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

// drain takes the drain of a node further. While it makes progress, it returns NotNeeded.
func (p *preserver) drain(ctx context.Context, s *preserveScope) (preservation.Drain, error) {
	if p.Drain.Drainer == nil {
		return preservation.Done, nil
	}
	current := &s.machine.Status.CurrentStatus
	began := current.LastUpdateTime.Time
	if current.PreserveExpiryTime == nil {
		began = s.now // as the expiry will be set
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

// stop ends a preservation. The condition of the node comes after its other marks, since it says that
// everything is done.
func (p *preserver) stop(ctx context.Context, s *preserveScope) error {
	err := p.unmark(ctx, s, func(node *corev1.Node) { preservation.Unmark(node, s.plan.Unwish) })
	if err == nil && s.preserved != nil {
		err = apierror.IgnoreGone(p.nodes.patchStatus(ctx, &s.preserved, func(node *corev1.Node) { preservation.SetStopped(node, s.now) }))
	}
	if err == nil {
		err = s.annotate(ctx)
	}
	if err != nil {
		s.plan.Expiry = s.machine.Status.CurrentStatus.PreserveExpiryTime // it is not over
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

// record sets until when the Machine is preserved, and the node's condition about that.
func (s *preserveScope) record() {
	current := &s.machine.Status.CurrentStatus
	before := current.PreserveExpiryTime
	if s.plan.Action != preservation.None && !before.Equal(s.plan.Expiry) {
		current.PreserveExpiryTime, current.LastUpdateTime = s.plan.Expiry, metav1.NewTime(s.now)
	}
	s.machine.Status.Conditions = withPreserved(s.machine.Status.Conditions, s.preserved)
	s.addEvents(before != nil)
}

// addEvents adds the events about a preservation, which began before if wasPreserved.
func (s *preserveScope) addEvents(wasPreserved bool) {
	invalid := s.plan.Invalid
	if invalid != "" {
		invalid = "The " + invalid
	}
	s.events.warnOrForget(reasonInvalidPreserve, pendingEvent{reason: reasonInvalidPreserve, message: invalid})
	switch {
	case s.plan.Action == preservation.Preserve && !wasPreserved:
		s.events.add(corev1.EventTypeNormal, reasonPreserved, cause{}, fmt.Sprintf("The machine is kept until %s (%s)", s.plan.Expiry.UTC().Format(time.RFC3339), s.plan.Value))
	case s.plan.Action == preservation.Stop && s.machine.Status.CurrentStatus.PreserveExpiryTime == nil:
		s.events.add(corev1.EventTypeNormal, reasonPreservationOver, cause{}, "The machine is not preserved any more")
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
	switch {
	case is == nil || was != nil && preservation.Same(*is, *was):
		return machine
	case was == nil:
		return append(slices.Clone(machine), *is)
	}
	next := slices.Clone(machine)
	*noderef.Condition(next, v1alpha1.NodePreserved) = *is
	return next
}
