package machineset

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// Overshoot says how many Machines more than were asked for are taken for an error. A set
// that has so many is frozen: it creates none until there are fewer again.
type Overshoot struct {
	// Up is how many Machines beyond its limit freeze a set. The limit of a set is what
	// its deployment wants, with the surge; of one without a deployment, it is twice what
	// the set wants.
	Up int32
	// Down is how many fewer than those that froze it a set must have to be unfrozen. What
	// froze it never unfreezes it, and having none always does.
	Down int32
}

// frozen reports whether a set may create nothing.
func frozen(set *v1alpha1.MachineSet) bool { return set.Labels[v1alpha1.LabelKeyFreeze] == "True" }

// guard freezes a set that has far too many Machines, and unfreezes it when it has not any
// more, or when somebody asks for that.
//
// Machines on their way out do not count, nor do those that are preserved, nor does it count
// that a deployment wants fewer than its set was told: what replacing Machines, rolling
// updates and late caches bring about is no error. Only a user who takes away many at once
// sees the set frozen, for as long as it takes to delete them, and nothing waits for that:
// MCM does so, and its integration tests wait for the two events.
func guard(f facts, count int) []operation {
	if _, asked := f.set.Annotations[v1alpha1.AnnotationKeyUnfreeze]; asked {
		return []operation{{action: unfreeze, reason: "the annotation " + v1alpha1.AnnotationKeyUnfreeze + " asks for it"}}
	}
	if f.overshoot == nil {
		return nil
	}
	high := max(1, limit(f.set, f.parent)+int(f.overshoot.Up))
	low := max(0, high-max(1, int(f.overshoot.Down)))
	switch {
	case count >= high && !frozen(f.set):
		return []operation{{action: freeze, reason: fmt.Sprintf("%d machines exist, which is no less than the limit of %d", count, high)}}
	case count <= low && (frozen(f.set) || condition(f.set.Status.Conditions, v1alpha1.MachineSetFrozen) >= 0):
		return []operation{{action: unfreeze, reason: fmt.Sprintf("%d machines exist, which is no more than the limit of %d", count, low)}}
	}
	return nil
}

// limit is how many Machines a set may be expected to have at the most. The set may know of
// a change of its deployment before the cache shows the deployment.
func limit(set *v1alpha1.MachineSet, parent *v1alpha1.MachineDeployment) int {
	if parent == nil {
		return 2 * int(set.Spec.Replicas)
	}
	return int(max(parent.Spec.Replicas, set.Spec.Replicas)) + surge(parent)
}

// surge is how many Machines more than wanted a deployment may have while it rolls. One
// that cannot be read is none: it is the deployment's controller that complains.
func surge(deployment *v1alpha1.MachineDeployment) int {
	one := intstr.FromInt32(1)
	value := &one // the documented default
	switch strategy := deployment.Spec.Strategy; strategy.Type {
	case v1alpha1.RollingUpdateMachineDeploymentStrategyType, "":
		if strategy.RollingUpdate != nil && strategy.RollingUpdate.MaxSurge != nil {
			value = strategy.RollingUpdate.MaxSurge
		}
	case v1alpha1.InPlaceUpdateMachineDeploymentStrategyType:
		if strategy.InPlaceUpdate != nil && strategy.InPlaceUpdate.MaxSurge != nil {
			value = strategy.InPlaceUpdate.MaxSurge
		}
	default:
		return 0
	}
	number, err := intstr.GetScaledValueFromIntOrPercent(value, int(deployment.Spec.Replicas), true)
	if err != nil {
		return 0
	}
	return max(0, number)
}
