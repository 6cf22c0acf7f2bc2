package noderef

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// SetTerminating changes the node's status to tell that its machine is being deleted: for
// its health, or because it is not wanted any more. A node that tells so already is left as
// it is: what it was deleted for does not change.
func SetTerminating(node *corev1.Node, unhealthy bool, now time.Time) {
	condition := corev1.NodeCondition{
		Type: v1alpha1.NodeTerminationCondition, Status: corev1.ConditionTrue,
		LastHeartbeatTime: metav1.NewTime(now), LastTransitionTime: metav1.NewTime(now),
		Reason: v1alpha1.NodeScaleDown, Message: "Machine Controller is scaling down machine",
	}
	if unhealthy {
		condition.Reason, condition.Message = v1alpha1.NodeUnhealthy, "Machine Controller is replacing an unhealthy machine"
	}
	for i := range node.Status.Conditions {
		known := &node.Status.Conditions[i]
		if known.Type != condition.Type {
			continue
		}
		if known.Status != corev1.ConditionTrue {
			*known = condition
		}
		return
	}
	node.Status.Conditions = append(node.Status.Conditions, condition)
}
