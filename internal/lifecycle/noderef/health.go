// Package noderef evaluates the health of Nodes and applies node templates to them. It makes no API requests.
package noderef

import (
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// Healthy reports whether a node is healthy. It must have at least one condition. If it has the condition
// Ready, that must be True, and its bad conditions must be False.
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

// Reported reports whether the conditions show that a kubelet has reported the status of its node. Other programs may
// set conditions on a Machine before its node joins, and on a node before its kubelet reports. Only the condition Ready
// always comes from the kubelet.
func Reported(conditions []corev1.NodeCondition) bool {
	return Condition(conditions, corev1.NodeReady) != nil
}

// DefaultBadConditions is the default of the manager's flag --node-conditions.
var DefaultBadConditions = []string{"KernelDeadlock", "ReadonlyFilesystem", "DiskPressure", "NetworkUnavailable"}

// BadConditions returns the bad conditions in the Machine's spec, or else those of the manager's flag.
func BadConditions(machine *v1alpha1.Machine, flag []string) []string {
	if config := machine.Spec.MachineConfiguration; config != nil && config.NodeConditions != nil {
		return ParseConditions(*config.NodeConditions)
	}
	return flag
}

// ParseConditions returns the condition types in a comma-separated list, without surrounding spaces. MCM keeps
// the spaces and therefore never finds such conditions.
func ParseConditions(list string) []string {
	types := strings.Split(list, ",")
	for i := range types {
		types[i] = strings.TrimSpace(types[i])
	}
	return types
}

// Condition returns the node condition of a type, or nil if there is none.
func Condition(conditions []corev1.NodeCondition, of corev1.NodeConditionType) *corev1.NodeCondition {
	at := slices.IndexFunc(conditions, func(c corev1.NodeCondition) bool { return c.Type == of })
	if at < 0 {
		return nil
	}
	return &conditions[at]
}

// ConditionsDiffer reports whether two lists of conditions differ in types, statuses or reasons.
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

// CriticalComponentsReady reports whether the node does not have the taint that keeps a new Machine Pending.
func CriticalComponentsReady(node *corev1.Node) bool {
	return !slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool {
		return taint.Key == v1alpha1.TaintKeyCriticalComponentsNotReady
	})
}

// SetToBeDeleted sets the taint that makes load balancers stop sending connections to a node. It does not change a taint
// that is already set, for example by the cluster autoscaler.
func SetToBeDeleted(node *corev1.Node, now time.Time) {
	taint := corev1.Taint{Key: v1alpha1.TaintKeyToBeDeleted, Value: strconv.FormatInt(now.Unix(), 10), Effect: corev1.TaintEffectNoSchedule}
	if findTaint(node.Spec.Taints, taint) == nil {
		node.Spec.Taints = append(node.Spec.Taints, taint)
	}
}

// SetTerminating sets the termination condition of a node whose Machine is being deleted, because it is
// unhealthy or scaled down. It does not change a condition that is already set.
func SetTerminating(node *corev1.Node, unhealthy bool, now time.Time) {
	condition := corev1.NodeCondition{
		Type: v1alpha1.NodeTerminationCondition, Status: corev1.ConditionTrue,
		LastHeartbeatTime: metav1.NewTime(now), LastTransitionTime: metav1.NewTime(now),
		Reason: v1alpha1.NodeScaleDown, Message: "Machine Controller is scaling down machine",
	}
	if unhealthy {
		condition.Reason, condition.Message = v1alpha1.NodeUnhealthy, "Machine Controller is replacing an unhealthy machine"
	}
	switch known := Condition(node.Status.Conditions, condition.Type); {
	case known == nil:
		node.Status.Conditions = append(node.Status.Conditions, condition)
	case known.Status != corev1.ConditionTrue:
		*known = condition
	}
}
