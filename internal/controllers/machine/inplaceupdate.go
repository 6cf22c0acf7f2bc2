package machine

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
	"github.com/millwright-dev/millwright/internal/lifecycle/replacement"
	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// inPlaceUpdater updates the nodes of Machines in place.
//
// A MachineDeployment, or a user, labels nodes as candidates and selects some. A selected node is
// drained and gets the condition InPlaceUpdate with the reason ReadyForUpdate. An agent on the node
// then updates it, and sets the label update-result. All state is in these objects, so that any
// manager, including MCM, can continue at any point.
//
// The Machine becomes InPlaceUpdating before its node becomes ready for the update, so that a restart of the
// node does not make the Machine unhealthy.
type inPlaceUpdater struct {
	*Options
	nodes        *nodeClient
	drains       *drainer
	replacements *replacement.Limiter
}

// Topics of warnings about in-place updates.
const (
	topicUpdateLabels = "updateLabels"
	topicUpdateDrain  = "updateDrain"
)

// Reasons of events about in-place updates.
const (
	reasonUpdateSelected   = "UpdateSelected"
	reasonUpdateReady      = "UpdateReady"
	reasonUpdateSuccessful = "UpdateSuccessful"
	reasonUpdateFailed     = "UpdateFailed"
	reasonUpdateLabels     = "UpdateLabels"
)

// run advances the in-place update of the node. It does not block on a drain, so that the next step still checks
// the health of the node.
func (u *inPlaceUpdater) run(ctx context.Context, s *scope) flow.Result {
	if !readUpdate(s.node).concerns(s.machine.Status.CurrentStatus.Phase) {
		s.memory.sent.Over(topicUpdateLabels)
		return flow.Continue()
	}
	before := s.machine.Status.CurrentStatus.Phase
	s.events.warnOrForget(topicUpdateLabels, pendingEvent{reason: reasonUpdateLabels, message: readUpdate(s.node).Check(s.machine).Message})
	problem, err := u.advance(ctx, s)
	s.events.warnOrForget(topicUpdateDrain, pendingEvent{reason: reasonFailedDrain, message: problem})
	if apierror.IgnoreGone(err) != nil { // a missing node is not updated
		return flow.Fail(err)
	}
	if s.machine.Status.CurrentStatus.Phase == before {
		return flow.Continue()
	}
	s.requeueWithin(s.copyConditions(noderef.BadConditions(s.machine, u.NodeConditions)))
	return flow.Wait(0, "the new phase to be stored")
}

// advance writes the conditions that follow from the labels, and drains a selected node. problem is why the drain
// makes no progress; it is empty if the drain does.
func (u *inPlaceUpdater) advance(ctx context.Context, s *scope) (problem string, err error) {
	if err := u.writeConditions(ctx, s); err != nil {
		return "", err
	}
	if readUpdate(s.node).drains(s.machine.Status.CurrentStatus.Phase) {
		return u.drain(ctx, s)
	}
	u.conclude(s)
	return "", nil
}

// writeConditions writes the next condition of the node until no other condition follows.
func (u *inPlaceUpdater) writeConditions(ctx context.Context, s *scope) error {
	for {
		before := readUpdate(s.node)
		reason := before.next(s.machine.Status.CurrentStatus.Phase)
		if reason == "" {
			return nil
		}
		condition, changed := before.conditionWith(reason, s.now)
		if !changed {
			return nil
		}
		err := u.nodes.patchStatus(ctx, &s.node, func(node *corev1.Node) { setNodeCondition(node, condition) })
		if err != nil {
			return err
		}
		s.announceUpdate(reason)
	}
}

func setNodeCondition(node *corev1.Node, condition corev1.NodeCondition) {
	i := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == condition.Type })
	if i < 0 {
		node.Status.Conditions = append(node.Status.Conditions, condition)
		return
	}
	node.Status.Conditions[i] = condition
}

// announceUpdate adds an event about a condition that was written. Events about results are added with the phase.
func (s *scope) announceUpdate(reason string) {
	switch reason {
	case v1alpha1.SelectedForUpdate:
		s.events.addToBoth(s.node, corev1.EventTypeNormal, reasonUpdateSelected, cause{}, fmt.Sprintf("Node %s is selected for an in-place update; draining it first", s.node.Name))
	case v1alpha1.ReadyForUpdate:
		s.events.addToBoth(s.node, corev1.EventTypeNormal, reasonUpdateReady, cause{}, fmt.Sprintf("Node %s is drained; waiting for its agent to update it", s.node.Name))
	}
}

// forcedDrainRetry is the delay after which a forced drain that failed restarts.
const forcedDrainRetry = 5 * time.Second

// drain cordons and drains the node. Once the node has no Pods, the Machine becomes InPlaceUpdating; the next
// condition of the node follows after that phase is stored.
func (u *inPlaceUpdater) drain(ctx context.Context, s *scope) (problem string, err error) {
	if err := u.nodes.cordon(ctx, &s.node); err != nil {
		return "", err
	}
	began := readUpdate(s.node).Condition.LastTransitionTime.Time
	report, err := u.drains.drainNode(ctx, s, drainOfUpdate(s.machine, began), s.node)
	if err != nil {
		return "", err
	}
	s.reportForcedPods(report, cause{name: v1alpha1.CauseDrainForced})
	s.requeueWithin(report.Wait)
	problem = report.Problem()
	switch {
	case report.NodeGone:
	case report.Done && problem == "":
		u.drains.forget(s) // a later drain has different Pods
		u.move(s, v1alpha1.MachineInPlaceUpdating, v1alpha1.MachineStateProcessing, fmt.Sprintf("Machine %s is undergoing an in-place update", s.machine.Name))
	case report.Done: // the forced drain failed and restarts
		s.requeueWithin(forcedDrainRetry)
		u.drains.forget(s)
		s.updateDrainWaits(problem)
	default:
		s.updateDrainWaits(problem)
	}
	return problem, nil
}

// updateDrainWaits records why a drain makes no progress, and later that it does again. In phases other than
// Running, it keeps the last operation, which explains the phase.
func (s *scope) updateDrainWaits(problem string) {
	failing := s.machine.Status.LastOperation.Type == v1alpha1.MachineOperationDrainNode
	if s.machine.Status.CurrentStatus.Phase != v1alpha1.MachineRunning || problem == "" && !failing {
		return
	}
	description := "Draining the node before its in-place update"
	if problem != "" {
		description = drainFailure(problem)
	}
	s.setOperation(v1alpha1.MachineOperationDrainNode, v1alpha1.MachineStateProcessing, description, "")
}

// move sets the phase and the last operation, and reports whether either changed. A new phase stops a
// preservation, as in MCM, and releases the Machine's slot in the limit on replacements.
func (u *inPlaceUpdater) move(s *scope, phase v1alpha1.MachinePhase, state v1alpha1.MachineState, description string) bool {
	changed := s.setOperation(v1alpha1.MachineOperationInPlaceUpdate, state, description, "")
	if phase == s.machine.Status.CurrentStatus.Phase {
		return changed
	}
	s.setPhase(phase)
	s.machine.Status.CurrentStatus.PreserveExpiryTime = nil
	u.replacements.Release(s.key())
	return true
}

// conclude sets the phase according to the result that the agent reports.
func (u *inPlaceUpdater) conclude(s *scope) {
	if !isUpdatePhase(s.machine.Status.CurrentStatus.Phase) {
		return
	}
	switch n := readUpdate(s.node); n.Result {
	case v1alpha1.LabelValueNodeUpdateSuccessful:
		description := fmt.Sprintf("Machine %s successfully updated dependencies", s.machine.Name)
		u.move(s, v1alpha1.MachineInPlaceUpdateSuccessful, v1alpha1.MachineStateSuccessful, description)
		s.events.addToBoth(s.node, corev1.EventTypeNormal, reasonUpdateSuccessful, cause{}, description)
	case v1alpha1.LabelValueNodeUpdateFailed:
		u.fail(s, n.FailureReason)
	}
}

// fail records the failure that the agent reports, even if the update had timed out before.
func (u *inPlaceUpdater) fail(s *scope, why string) {
	description := fmt.Sprintf("Machine %s failed to update dependencies", s.machine.Name)
	if why != "" {
		description += ": " + why
	}
	current := &s.machine.Status
	if current.CurrentStatus.Phase == v1alpha1.MachineInPlaceUpdateFailed && current.LastOperation.Type != v1alpha1.MachineOperationInPlaceUpdate {
		return // another step has recorded something more recent
	}
	if u.move(s, v1alpha1.MachineInPlaceUpdateFailed, v1alpha1.MachineStateFailed, description) {
		s.events.addToBoth(s.node, corev1.EventTypeWarning, reasonUpdateFailed, cause{}, description)
	}
}

// await waits for the agent to update the node until the timeout expires. The node may be missing meanwhile.
func (u *inPlaceUpdater) await(ctx context.Context, s *scope) flow.Result {
	const what = "the node to be updated in place"
	timeout := timeouts.InPlaceUpdate(s.machine, u.InPlaceUpdateTimeout)
	left := s.outages.Countdown(ctx, s.phaseBegan(), timeout)
	if !left.Over() {
		return flow.Wait(left.Wait, what)
	}
	succeeded, err := u.nodes.usable(ctx, s)
	switch {
	case err != nil:
		return flow.Fail(err)
	case succeeded:
		return flow.Wait(expectations.StaleCache, "the cache to show that the update succeeded")
	}
	description := fmt.Sprintf("Machine %s has not been updated in place within %v. Updating machine phase to InPlaceUpdateFailed", s.machine.Name, timeout.Duration)
	u.move(s, v1alpha1.MachineInPlaceUpdateFailed, v1alpha1.MachineStateFailed, description)
	s.events.addToBoth(s.node, corev1.EventTypeWarning, reasonUpdateFailed, cause{}, description)
	return flow.Wait(0, what)
}
