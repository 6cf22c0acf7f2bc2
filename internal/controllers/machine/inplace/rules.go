package inplace

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
)

// ofNode is what a node says of its update.
type ofNode struct {
	// candidate and selected report that the node has these labels, with any value.
	candidate, selected bool
	// result is the label update-result, why the annotation update-failed-reason.
	result, why string
	// condition is InPlaceUpdate; the zero value if there is none.
	condition corev1.NodeCondition
}

func read(node *corev1.Node) ofNode {
	n := ofNode{result: node.Labels[v1alpha1.LabelKeyNodeUpdateResult], why: node.Annotations[v1alpha1.AnnotationKeyMachineUpdateFailedReason]}
	_, n.candidate = node.Labels[v1alpha1.LabelKeyNodeCandidateForUpdate]
	_, n.selected = node.Labels[v1alpha1.LabelKeyNodeSelectedForUpdate]
	n.condition = ptr.Deref(noderef.Condition(node.Status.Conditions, v1alpha1.NodeInPlaceUpdate), n.condition)
	return n
}

// Concerns reports whether the node takes part in an update.
func Concerns(machine *v1alpha1.Machine, node *corev1.Node) bool {
	n := read(node)
	return n.candidate || n.selected || n.result != "" || n.underway() || UpdatePhase(machine.Status.CurrentStatus.Phase)
}

// UpdatePhase reports whether the result of an update decides on the phase.
func UpdatePhase(phase v1alpha1.MachinePhase) bool {
	return phase == v1alpha1.MachineInPlaceUpdating || phase == v1alpha1.MachineInPlaceUpdateFailed
}

// underway reports whether the update has begun and the agent has not reported yet.
func (n ofNode) underway() bool {
	switch n.condition.Reason {
	case v1alpha1.SelectedForUpdate, v1alpha1.DrainSuccessful, v1alpha1.ReadyForUpdate:
		return true
	}
	return false
}

// next returns the reason of the condition that the node gets next; empty if it keeps its own.
func (n ofNode) next(phase v1alpha1.MachinePhase) string {
	if n.candidate {
		if reason := n.labelled(); reason != "" {
			return reason
		}
	}
	switch {
	case n.condition.Reason == v1alpha1.SelectedForUpdate && phase == v1alpha1.MachineInPlaceUpdating: // the drain is over
		return v1alpha1.DrainSuccessful
	case n.condition.Reason == v1alpha1.DrainSuccessful:
		return v1alpha1.ReadyForUpdate
	}
	return ""
}

// labelled returns the reason that follows from the labels of a candidate.
func (n ofNode) labelled() string {
	switch reason := n.condition.Reason; {
	case n.condition.Type == "", reason == v1alpha1.UpdateSuccessful && n.result == "": // the next update
		return v1alpha1.CandidateForUpdate
	case n.selected && reason == v1alpha1.CandidateForUpdate:
		return v1alpha1.SelectedForUpdate
	case n.selected && reason == v1alpha1.SelectedForUpdate: // whatever the result of before is
		return ""
	case n.result == v1alpha1.LabelValueNodeUpdateSuccessful:
		return v1alpha1.UpdateSuccessful
	case n.result == v1alpha1.LabelValueNodeUpdateFailed:
		return v1alpha1.UpdateFailed
	}
	return ""
}

// conditionWith returns the condition with a reason, and whether it differs from the node's. The
// message is MCM's. Like MCM, it has no time of a heartbeat.
func (n ofNode) conditionWith(reason string, now time.Time) (corev1.NodeCondition, bool) {
	made := corev1.NodeCondition{
		Type: v1alpha1.NodeInPlaceUpdate, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now),
		Reason: reason, Message: sentences[reason],
	}
	if reason == v1alpha1.UpdateFailed && n.why != "" {
		made.Message += ": " + n.why
	}
	was := n.condition
	was.LastHeartbeatTime = made.LastHeartbeatTime
	if was.Status == made.Status && was.Reason == made.Reason {
		made.LastTransitionTime = was.LastTransitionTime
	}
	return made, was != made
}

// sentences are MCM's messages of the condition.
var sentences = map[string]string{
	v1alpha1.CandidateForUpdate: "Node is a candidate for in-place update",
	v1alpha1.SelectedForUpdate:  "Node is selected for in-place update",
	v1alpha1.DrainSuccessful:    "Node draining successful",
	v1alpha1.ReadyForUpdate:     "Node is ready for in-place update",
	v1alpha1.UpdateSuccessful:   "Node in-place update successful",
	v1alpha1.UpdateFailed:       "Node in-place update failed",
}

// drains reports whether the node is to be drained for its update. Machines that have not joined are
// drained once they have, and those that are Failed once they have recovered.
func (n ofNode) drains(phase v1alpha1.MachinePhase) bool {
	switch phase {
	case v1alpha1.MachineRunning, v1alpha1.MachineUnknown, v1alpha1.MachineInPlaceUpdateSuccessful, v1alpha1.MachineInPlaceUpdateFailed:
		return n.condition.Reason == v1alpha1.SelectedForUpdate
	}
	return false
}

// Draining reports whether the node of the Machine is drained for its update, as the Machine's status
// has it.
func Draining(machine *v1alpha1.Machine) bool {
	condition := noderef.Condition(machine.Status.Conditions, v1alpha1.NodeInPlaceUpdate)
	return condition != nil && condition.Reason == v1alpha1.SelectedForUpdate
}

// Succeeded reports whether the agent of the node has reported success.
func Succeeded(node *corev1.Node) bool {
	return node.Labels[v1alpha1.LabelKeyNodeUpdateResult] == v1alpha1.LabelValueNodeUpdateSuccessful
}

// Failed reports whether the update of the node failed, or took too long for its Machine, which is Failed
// then: it does not recover by the health of a node that is cordoned and not updated.
func Failed(node *corev1.Node) bool {
	switch read(node).condition.Reason {
	case v1alpha1.DrainSuccessful, v1alpha1.ReadyForUpdate, v1alpha1.UpdateFailed:
		return !Succeeded(node)
	}
	return false
}

// misplaced says which label does not do what it seems to; empty if none.
func (n ofNode) misplaced() string {
	const without = "label %s has no effect without %s"
	begun := n.underway()
	switch {
	case begun && n.result == "" && !n.labelledAsSelected():
		return fmt.Sprintf("label %s or %s was removed while the node is updated: the update goes on", v1alpha1.LabelKeyNodeCandidateForUpdate, v1alpha1.LabelKeyNodeSelectedForUpdate)
	case n.selected && !n.candidate:
		return fmt.Sprintf(without, v1alpha1.LabelKeyNodeSelectedForUpdate, v1alpha1.LabelKeyNodeCandidateForUpdate)
	case n.result == "":
		return ""
	case n.result != v1alpha1.LabelValueNodeUpdateSuccessful && n.result != v1alpha1.LabelValueNodeUpdateFailed:
		return fmt.Sprintf("label %s has the value %q, which is no result", v1alpha1.LabelKeyNodeUpdateResult, n.result)
	case !n.candidate && !begun:
		return fmt.Sprintf(without, v1alpha1.LabelKeyNodeUpdateResult, v1alpha1.LabelKeyNodeCandidateForUpdate)
	case n.early():
		return fmt.Sprintf("label %s is set although the node was not ready for its update", v1alpha1.LabelKeyNodeUpdateResult)
	}
	return ""
}

func (n ofNode) labelledAsSelected() bool { return n.candidate && n.selected }

// early reports whether the agent could not have updated the node yet.
func (n ofNode) early() bool {
	switch n.condition.Reason {
	case "", v1alpha1.CandidateForUpdate, v1alpha1.SelectedForUpdate, v1alpha1.DrainSuccessful:
		return true
	}
	return false
}
