// Package nodes contains the rules for the nodes of simulated machines.
package nodes

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// Capacity returns the default capacity, overridden by the capacity in the class.
func Capacity(template *v1alpha1.NodeTemplate) corev1.ResourceList {
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:              resource.MustParse("2"),
		corev1.ResourceMemory:           resource.MustParse("4Gi"),
		corev1.ResourceEphemeralStorage: resource.MustParse("20Gi"),
		corev1.ResourcePods:             resource.MustParse("110"),
	}
	if template != nil {
		maps.Copy(capacity, template.Capacity)
	}
	// "gpu" is a name in MachineClasses, not a resource of nodes.
	delete(capacity, "gpu")
	return capacity
}

// MayUpdate reports whether the node waits for its agent.
func MayUpdate(node *corev1.Node) bool {
	ready := slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == v1alpha1.NodeInPlaceUpdate && c.Reason == v1alpha1.ReadyForUpdate
	})
	return ready && node.Labels[v1alpha1.LabelKeyNodeUpdateResult] == ""
}

// Opposite returns False for True, and True for all others.
func Opposite(ready corev1.ConditionStatus) corev1.ConditionStatus {
	if ready == corev1.ConditionTrue {
		return corev1.ConditionFalse
	}
	return corev1.ConditionTrue
}
