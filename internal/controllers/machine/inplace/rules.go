package inplace

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/inplaceupdate"
)

// ofNode is what a node says about its update, from which its next condition follows.
type ofNode struct{ inplaceupdate.Node }

func read(node *corev1.Node) ofNode { return ofNode{inplaceupdate.Read(node)} }

// Concerns reports whether the node takes part in an update.
func Concerns(machine *v1alpha1.Machine, node *corev1.Node) bool {
	n := read(node)
	return n.Candidate || n.Selected || n.Result != "" || n.Underway() || UpdatePhase(machine.Status.CurrentStatus.Phase)
}

// UpdatePhase reports whether the result of an update decides on the phase.
func UpdatePhase(phase v1alpha1.MachinePhase) bool {
	return phase == v1alpha1.MachineInPlaceUpdating || phase == v1alpha1.MachineInPlaceUpdateFailed
}

// next returns the reason of the condition that the node gets next; empty if it keeps its own.
func (n ofNode) next(phase v1alpha1.MachinePhase) string {
	if n.Candidate {
		if reason := n.labelled(); reason != "" {
			return reason
		}
	}
	switch {
	case n.Condition.Reason == v1alpha1.SelectedForUpdate && phase == v1alpha1.MachineInPlaceUpdating: // the drain is over
		return v1alpha1.DrainSuccessful
	case n.Condition.Reason == v1alpha1.DrainSuccessful:
		return v1alpha1.ReadyForUpdate
	}
	return ""
}

// labelled returns the reason that follows from the labels of a candidate.
func (n ofNode) labelled() string {
	switch reason := n.Condition.Reason; {
	case n.Condition.Type == "", reason == v1alpha1.UpdateSuccessful && n.Result == "": // the next update
		return v1alpha1.CandidateForUpdate
	case n.Selected && reason == v1alpha1.CandidateForUpdate:
		return v1alpha1.SelectedForUpdate
	case n.Selected && reason == v1alpha1.SelectedForUpdate: // whatever the result of before is
		return ""
	case n.Result == v1alpha1.LabelValueNodeUpdateSuccessful:
		return v1alpha1.UpdateSuccessful
	case n.Result == v1alpha1.LabelValueNodeUpdateFailed:
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
	if reason == v1alpha1.UpdateFailed && n.FailureReason != "" {
		made.Message += ": " + n.FailureReason
	}
	was := n.Condition
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
		return n.Condition.Reason == v1alpha1.SelectedForUpdate
	}
	return false
}

// Draining reports whether the node of the Machine is drained for its update, as the Machine's status
// has it.
func Draining(machine *v1alpha1.Machine) bool {
	return inplaceupdate.State(machine) == v1alpha1.SelectedForUpdate
}

// Succeeded reports whether the agent of the node has reported success.
func Succeeded(node *corev1.Node) bool {
	return inplaceupdate.Read(node).Succeeded()
}

// Failed reports whether the update of the node failed, or took too long for its Machine, which is Failed
// then: it does not recover by the health of a node that is cordoned and not updated.
func Failed(node *corev1.Node) bool {
	switch read(node).Condition.Reason {
	case v1alpha1.DrainSuccessful, v1alpha1.ReadyForUpdate, v1alpha1.UpdateFailed:
		return !Succeeded(node)
	}
	return false
}
