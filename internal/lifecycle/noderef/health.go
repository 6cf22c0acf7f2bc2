// Package noderef reads Nodes: how they are, and what they lack of what their Machine
// wants them to carry. It is pure: it neither reads nor writes an API server.
package noderef

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// Healthy reports whether a node with these conditions can be used. It has at least one
// condition; Ready is True if it is there; and each of the conditions named in bad is
// False if it is there. An unknown bad condition is not a good sign. Other conditions
// do not count.
func Healthy(conditions []corev1.NodeCondition, bad []string) bool {
	for _, condition := range conditions {
		switch {
		case condition.Type == corev1.NodeReady:
			if condition.Status != corev1.ConditionTrue {
				return false
			}
		case slices.Contains(bad, string(condition.Type)):
			if condition.Status != corev1.ConditionFalse {
				return false
			}
		}
	}
	return len(conditions) > 0
}

// DefaultBadConditions are the conditions of the manager's flag --node-conditions.
var DefaultBadConditions = []string{"KernelDeadlock", "ReadonlyFilesystem", "DiskPressure", "NetworkUnavailable"}

// BadConditions are the conditions that make the Machine unhealthy unless they are False: those
// of its spec, or those of the manager's flag.
func BadConditions(machine *v1alpha1.Machine, flag []string) []string {
	if config := machine.Spec.MachineConfiguration; config != nil && config.NodeConditions != nil {
		return strings.Split(*config.NodeConditions, ",")
	}
	return flag
}

// ConditionsDiffer reports whether a condition came, went, or changed its status or
// reason. Heartbeats and messages do not count.
func ConditionsDiffer(a, b []corev1.NodeCondition) bool {
	if len(a) != len(b) {
		return true
	}
	for _, was := range a {
		same := slices.ContainsFunc(b, func(is corev1.NodeCondition) bool {
			return is.Type == was.Type && is.Status == was.Status && is.Reason == was.Reason
		})
		if !same {
			return true
		}
	}
	return false
}

// CriticalComponentsReady reports whether the node lacks the taint that keeps a new
// machine from being Running.
func CriticalComponentsReady(node *corev1.Node) bool {
	return !slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool {
		return taint.Key == v1alpha1.TaintKeyCriticalComponentsNotReady
	})
}

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
