package machine

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machine/passevents"
	"github.com/millwright-dev/millwright/internal/controllers/machine/preserve"
	"github.com/millwright-dev/millwright/internal/lifecycle/preservation"
	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
)

// DefaultPreserveTimeout is that of MCM.
const DefaultPreserveTimeout = timeouts.DefaultPreserve

// preserve begins, continues or ends the preservation of a Machine that is not being deleted. It follows
// the steps of the pass, however they ended, since it depends on the phase that they found.
func (c *Controller) preserve(ctx context.Context, s *scope) error {
	facts := preservation.Facts{
		Machine: s.machine, Node: s.node, Now: s.now, Timeout: timeouts.Preserve(s.machine, c.PreserveTimeout).Duration,
	}
	if !preservation.Concerns(facts) || s.node != nil && !s.node.DeletionTimestamp.IsZero() {
		return nil
	}
	if s.node == nil {
		var err error
		if facts.Node, facts.Hidden, err = c.nodeToPreserve(ctx, s); err != nil {
			return err
		}
	}
	keeper := preserve.Keeper{
		Nodes: &c.nodes, Drainer: c.Drain.Drainer, Timer: c.drainTimer(), MaxEvictRetries: c.Drain.MaxEvictRetries,
	}
	if c.Target != nil {
		keeper.Target = c.Target.Client()
	}
	done, err := keeper.Run(ctx, preserve.Pass{Facts: facts, Annotate: func(ctx context.Context, change func(*v1alpha1.Machine)) error {
		return c.patchMachine(ctx, s, change)
	}})
	s.wakeWithin(done.Wake)
	s.preserved(done)
	return err
}

// nodeToPreserve returns the node that no step has found, nil if there is none. It is hidden if the cache
// is old, the target is away, or the node is another's.
func (c *Controller) nodeToPreserve(ctx context.Context, s *scope) (node *corev1.Node, hidden bool, err error) {
	name := s.machine.Labels[v1alpha1.NodeLabelKey]
	switch {
	case c.Target == nil || name == "":
		return nil, false, nil
	case !c.Target.Ready() || s.nodeOfOther:
		return nil, true, nil
	}
	found, other, err := c.readNode(ctx, s, name)
	usable := found != nil && other == nil && c.nodes.Fresh(found) && found.DeletionTimestamp.IsZero()
	if err != nil || !usable {
		return nil, other != nil || found != nil, err
	}
	return found, false, nil
}

const (
	reasonPreserved        = "Preserved"
	reasonPreservationOver = "PreservationStopped"
	reasonInvalidPreserve  = "InvalidPreserveValue"

	topicPreserveDrain = "preserve-drain"
)

// sayPreserved explains what a preservation came to.
func (s *scope) sayPreserved(done preserve.Outcome, before bool) {
	if done.Invalid != "" {
		s.events.WarnOnce(reasonInvalidPreserve, passevents.Event{Reason: reasonInvalidPreserve, Message: "The " + done.Invalid})
	} else {
		s.memory.sent.Over(reasonInvalidPreserve)
	}
	switch {
	case done.Action == preservation.Preserve && !before:
		s.events.Add(corev1.EventTypeNormal, reasonPreserved, passevents.Cause{}, fmt.Sprintf("The machine is kept until %s (%s)", done.Expiry.UTC().Format(time.RFC3339), done.Value))
	case done.Action == preservation.Stop && s.machine.Status.CurrentStatus.PreserveExpiryTime == nil:
		s.events.Add(corev1.EventTypeNormal, reasonPreservationOver, passevents.Cause{}, "The machine is not preserved any more")
	}
	if done.Forced != "" {
		s.events.AddToBoth(s.node, corev1.EventTypeWarning, reasonForcedDrain, passevents.Cause{Name: v1alpha1.CauseDrainForced}, done.Forced)
	}
	switch {
	case done.Problem != "":
		s.events.WarnOnce(topicPreserveDrain, passevents.Event{Reason: reasonFailedDrain, Message: "The node of the preserved machine cannot be drained yet: " + done.Problem})
	case done.Drained:
		s.memory.sent.Over(topicPreserveDrain)
		s.events.Add(corev1.EventTypeNormal, reasonDrained, passevents.Cause{}, fmt.Sprintf("The pods of node %s are gone", done.Node.Name))
	}
}
