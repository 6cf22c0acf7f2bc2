package machine

import (
	"context"
	"slices"

	"github.com/millwright-dev/millwright/internal/controllers/machine/inplace"
	"github.com/millwright-dev/millwright/internal/controllers/machine/passevents"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// Topics of warnings about in-place updates.
const (
	topicUpdateLabels = "updateLabels"
	topicUpdateDrain  = "updateDrain"
)

// updateInPlace takes an in-place update of the node further. It does not wait for a drain: the health
// of the node counts meanwhile.
func (c *Controller) updateInPlace(ctx context.Context, s *scope) flow.Result {
	if !inplace.Concerns(s.machine, s.node) {
		s.memory.sent.Over(topicUpdateLabels)
		return flow.Continue()
	}
	updater := inplace.Updater{
		Target: c.Target.Client(), Nodes: &c.nodes, Timer: c.drainTimer(), MaxEvictRetries: c.Drain.MaxEvictRetries,
	}
	if c.Drain.Drainer != nil {
		updater.Drainer = c.Drain.Drainer
	}
	made, err := updater.Run(ctx, s.machine, &s.node, s.now)
	s.events.WarnOrForget(topicUpdateLabels, passevents.Event{Reason: inplace.ReasonMisplaced, Message: made.Misplaced})
	s.events.WarnOrForget(topicUpdateDrain, passevents.Event{Reason: reasonFailedDrain, Message: made.Problem})
	s.wakeWithin(made.Wake)
	moved := c.applyUpdate(s, made)
	if err == nil {
		err = c.noteReading(ctx, s, made.Timing)
	}
	if err != nil || !moved {
		return flow.Fail(err)
	}
	s.noteConditions()
	return flow.Wait(0, "the new phase to be stored")
}

// applyUpdate records how an update goes, and reports whether the phase changed.
func (c *Controller) applyUpdate(s *scope, made inplace.Outcome) bool {
	for _, e := range made.Events {
		s.events.AddToBoth(s.node, e.Kind, e.Reason, passevents.Cause{Name: e.Cause}, e.Message)
	}
	if op := made.Operation; op.Type != "" {
		s.operation(op.Type, op.State, op.Description, "")
	}
	if made.Phase == "" {
		return false
	}
	s.phase(made.Phase)
	s.machine.Status.CurrentStatus.PreserveExpiryTime = nil // as in MCM
	c.replacements.Release(s.key())
	return true
}

// awaitUpdate waits for the agent of the node, or for a node that is missing meanwhile.
func (c *Controller) awaitUpdate(ctx context.Context, s *scope) flow.Result {
	const what = "the node to be updated in place"
	timeout := timeouts.InPlaceUpdate(s.machine, c.InPlaceUpdateTimeout)
	left := c.outages.Countdown(ctx, s.phaseBegan(), timeout)
	if !left.Over() {
		return flow.Wait(left.Wait, what)
	}
	succeeded, err := c.usable(ctx, s)
	switch {
	case err != nil:
		return flow.Fail(err)
	case succeeded:
		return flow.Wait(expectations.StaleCache, "the cache to show that the update succeeded")
	}
	c.applyUpdate(s, inplace.TimedOut(s.machine, timeout.Duration))
	return flow.Wait(0, what)
}

// noteConditions copies the conditions of the node, unless only heartbeats differ.
func (s *scope) noteConditions() {
	if noderef.ConditionsDiffer(s.machine.Status.Conditions, s.node.Status.Conditions) {
		s.machine.Status.Conditions = slices.Clone(s.node.Status.Conditions) // an answer is decoded into it
	}
}
