package machine

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/inplaceupdate"
)

// updateState is the state of an in-place update in the labels and conditions of a node. The node's next condition
// follows from it.
type updateState struct{ inplaceupdate.Node }

func readUpdate(node *corev1.Node) updateState { return updateState{inplaceupdate.Read(node)} }

// concerns reports whether the node takes part in an in-place update.
func (n updateState) concerns(phase v1alpha1.MachinePhase) bool {
	return n.Candidate || n.Selected || n.Result != "" || n.Underway() || isUpdatePhase(phase)
}

// isUpdatePhase reports whether the result of an in-place update determines the next phase.
func isUpdatePhase(phase v1alpha1.MachinePhase) bool {
	return phase == v1alpha1.MachineInPlaceUpdating || phase == v1alpha1.MachineInPlaceUpdateFailed
}

// next returns the reason of the node's next condition. It is empty if the condition does not change.
func (n updateState) next(phase v1alpha1.MachinePhase) string {
	if n.Candidate {
		if reason := n.nextByLabels(); reason != "" {
			return reason
		}
	}
	switch {
	case n.Condition.Reason == v1alpha1.SelectedForUpdate && phase == v1alpha1.MachineInPlaceUpdating: // the drain is complete
		return v1alpha1.DrainSuccessful
	case n.Condition.Reason == v1alpha1.DrainSuccessful:
		return v1alpha1.ReadyForUpdate
	}
	return ""
}

// nextByLabels returns the reason that follows from the labels of a candidate.
func (n updateState) nextByLabels() string {
	switch reason := n.Condition.Reason; {
	case n.Condition.Type == "", reason == v1alpha1.UpdateSuccessful && n.Result == "": // the next update
		return v1alpha1.CandidateForUpdate
	case n.Selected && reason == v1alpha1.CandidateForUpdate:
		return v1alpha1.SelectedForUpdate
	case n.Selected && reason == v1alpha1.SelectedForUpdate: // the result is that of the previous update
		return ""
	case n.Result == v1alpha1.LabelValueNodeUpdateSuccessful:
		return v1alpha1.UpdateSuccessful
	case n.Result == v1alpha1.LabelValueNodeUpdateFailed:
		return v1alpha1.UpdateFailed
	}
	return ""
}

// conditionWith returns the condition with the given reason, and whether it differs from the node's condition.
// The message is MCM's. Like MCM's condition, it has no heartbeat time.
func (n updateState) conditionWith(reason string, now time.Time) (condition corev1.NodeCondition, changed bool) {
	condition = corev1.NodeCondition{
		Type: v1alpha1.NodeInPlaceUpdate, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now),
		Reason: reason, Message: updateMessages[reason],
	}
	if reason == v1alpha1.UpdateFailed && n.FailureReason != "" {
		condition.Message += ": " + n.FailureReason
	}
	was := n.Condition
	was.LastHeartbeatTime = condition.LastHeartbeatTime
	if was.Status == condition.Status && was.Reason == condition.Reason {
		condition.LastTransitionTime = was.LastTransitionTime
	}
	return condition, was != condition
}

// updateMessages are MCM's messages of the condition.
var updateMessages = map[string]string{
	v1alpha1.CandidateForUpdate: "Node is a candidate for in-place update",
	v1alpha1.SelectedForUpdate:  "Node is selected for in-place update",
	v1alpha1.DrainSuccessful:    "Node draining successful",
	v1alpha1.ReadyForUpdate:     "Node is ready for in-place update",
	v1alpha1.UpdateSuccessful:   "Node in-place update successful",
	v1alpha1.UpdateFailed:       "Node in-place update failed",
}

// drains reports whether the node must be drained for its update. Nodes of Machines that have not joined are
// drained after they join, and nodes of Failed Machines after they recover.
func (n updateState) drains(phase v1alpha1.MachinePhase) bool {
	switch phase {
	case v1alpha1.MachineRunning, v1alpha1.MachineUnknown, v1alpha1.MachineInPlaceUpdateSuccessful, v1alpha1.MachineInPlaceUpdateFailed:
		return n.Condition.Reason == v1alpha1.SelectedForUpdate
	}
	return false
}

// failed reports whether the update of the node failed or timed out. If its Machine is Failed, a healthy node does
// not make the Machine Running again, since the node is cordoned and not updated.
func (n updateState) failed() bool {
	switch n.Condition.Reason {
	case v1alpha1.DrainSuccessful, v1alpha1.ReadyForUpdate, v1alpha1.UpdateFailed:
		return !n.Succeeded()
	}
	return false
}
