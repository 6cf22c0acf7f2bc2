package planner

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// Overshoot configures when a set is frozen, that is, creates no Machines.
type Overshoot struct {
	// Up is how many Machines beyond its limit freeze a set. The limit is the replicas of its
	// deployment with the surge; for a set without a deployment, twice its own replicas.
	Up int32
	// Down is how many Machines fewer than froze it unfreeze a set. At least one fewer is needed, and
	// no Machines are always few enough.
	Down int32
}

// Frozen reports whether a set must not create Machines.
func Frozen(set *v1alpha1.MachineSet) bool { return set.Labels[v1alpha1.LabelKeyFreeze] == "True" }

// freezeOrUnfreeze freezes a set that has far too many Machines, and unfreezes it when it has fewer
// again or when an annotation asks for that.
//
// Machines that are being deleted or preserved do not count, nor does it matter that the deployment
// wants fewer than the set does: replacements, rollouts and late caches are no error. A set that is
// scaled down by many at once is frozen until those are being deleted; MCM does the same, and its
// integration tests wait for the two events.
func freezeOrUnfreeze(f Facts, count int) []Operation {
	if _, asked := f.Set.Annotations[v1alpha1.AnnotationKeyUnfreeze]; asked {
		return []Operation{{Action: Unfreeze, Reason: "the annotation " + v1alpha1.AnnotationKeyUnfreeze + " asks for it"}}
	}
	if f.Overshoot == nil {
		return nil
	}
	high, exceeded := f.Overshoot.Exceeded(f.Set, f.Parent, count)
	low := max(0, high-max(1, int(f.Overshoot.Down)))
	switch {
	case exceeded && !Frozen(f.Set):
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

// Exceeded returns the number of Machines that freezes a set of a deployment, which may be nil, and
// reports whether the set has as many.
func (o *Overshoot) Exceeded(set *v1alpha1.MachineSet, parent *v1alpha1.MachineDeployment, count int) (int, bool) {
	high := max(1, limit(set, parent)+int(o.Up))
	return high, count >= high
}

func hasFrozenCondition(set *v1alpha1.MachineSet) bool {
	return slices.ContainsFunc(set.Status.Conditions, func(c v1alpha1.MachineSetCondition) bool { return c.Type == v1alpha1.MachineSetFrozen })
}

// limit returns how many Machines a set is expected to have at most. The set may show a change of its
// deployment before the cache shows the deployment.
func limit(set *v1alpha1.MachineSet, parent *v1alpha1.MachineDeployment) int {
	if parent == nil {
		return 2 * int(set.Spec.Replicas)
	}
	return int(max(parent.Spec.Replicas, set.Spec.Replicas)) + surge(parent)
}

// surge returns how many Machines beyond its replicas a deployment may have during a rollout. An
// invalid value counts as none: the deployment's controller reports it.
func surge(deployment *v1alpha1.MachineDeployment) int {
	var value *intstr.IntOrString
	switch strategy := deployment.Spec.Strategy; {
	case strategy.Type == v1alpha1.RecreateMachineDeploymentStrategyType:
		return 0
	case strategy.Type == v1alpha1.InPlaceUpdateMachineDeploymentStrategyType && strategy.InPlaceUpdate != nil:
		value = strategy.InPlaceUpdate.MaxSurge
	case strategy.Type != v1alpha1.InPlaceUpdateMachineDeploymentStrategyType && strategy.RollingUpdate != nil:
		value = strategy.RollingUpdate.MaxSurge
	}
	number, err := intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(value, intstr.FromInt32(1)), int(deployment.Spec.Replicas), true)
	if err != nil {
		return 0
	}
	return max(0, number)
}
