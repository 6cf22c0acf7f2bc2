package planner

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// Overshoot is how many Machines beyond what is wanted are an error. A set that has so many is
// frozen: it creates none until there are fewer again.
type Overshoot struct {
	// Up is how many Machines beyond its limit freeze a set. The limit of a set is what
	// its deployment wants, with the surge; of one without a deployment, it is twice what
	// the set wants.
	Up int32
	// Down is how many fewer than those that froze it a set must have to be unfrozen. What
	// froze it never unfreezes it, and having none always does.
	Down int32
}

// Frozen reports whether a set must not create Machines.
func Frozen(set *v1alpha1.MachineSet) bool { return set.Labels[v1alpha1.LabelKeyFreeze] == "True" }

// freezeOrUnfreeze freezes a set that has far too many Machines, and unfreezes it when it has fewer
// again or when somebody asks for that.
//
// Machines that are being deleted or preserved do not count, nor does it count that a deployment
// wants fewer than the set does: replacements, rollouts and late caches are no error. Only a user
// who takes away many at once sees the set frozen for as long as it takes to delete them. Nothing
// waits for that; MCM does the same, and its integration tests wait for the two events.
func freezeOrUnfreeze(f Facts, count int) []Operation {
	if _, asked := f.Set.Annotations[v1alpha1.AnnotationKeyUnfreeze]; asked {
		return []Operation{{Action: Unfreeze, Reason: "the annotation " + v1alpha1.AnnotationKeyUnfreeze + " asks for it"}}
	}
	if f.Overshoot == nil {
		return nil
	}
	high := f.Overshoot.high(f.Set, f.Parent)
	low := max(0, high-max(1, int(f.Overshoot.Down)))
	switch {
	case count >= high && !Frozen(f.Set):
		return []Operation{{Action: Freeze, Count: count, Reason: TooMany(count, high)}}
	case count <= low && (Frozen(f.Set) || hasFrozenCondition(f.Set)):
		return []Operation{{Action: Unfreeze, Reason: fmt.Sprintf("%d machines exist, which is no more than the limit of %d", count, low)}}
	}
	return nil
}

// TooMany says why a set is frozen.
func TooMany(count, limit int) string {
	return fmt.Sprintf("%d machines exist, which is no less than the limit of %d", count, limit)
}

// Exceeded returns the number of Machines that freezes a set of a deployment, and reports whether
// the set has as many. The deployment is nil if there is none.
func (o *Overshoot) Exceeded(set *v1alpha1.MachineSet, parent *v1alpha1.MachineDeployment, count int) (int, bool) {
	high := o.high(set, parent)
	return high, count >= high
}

func (o *Overshoot) high(set *v1alpha1.MachineSet, parent *v1alpha1.MachineDeployment) int {
	return max(1, limit(set, parent)+int(o.Up))
}

func hasFrozenCondition(set *v1alpha1.MachineSet) bool {
	return slices.ContainsFunc(set.Status.Conditions, func(c v1alpha1.MachineSetCondition) bool { return c.Type == v1alpha1.MachineSetFrozen })
}

// limit is how many Machines a set is expected to have at most. The set may show a change of its
// deployment before the cache shows the deployment.
func limit(set *v1alpha1.MachineSet, parent *v1alpha1.MachineDeployment) int {
	if parent == nil {
		return 2 * int(set.Spec.Replicas)
	}
	return int(max(parent.Spec.Replicas, set.Spec.Replicas)) + surge(parent)
}

// surge is how many Machines beyond what is wanted a deployment may have during a rollout. An
// invalid one counts as none: the deployment's controller reports it.
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
