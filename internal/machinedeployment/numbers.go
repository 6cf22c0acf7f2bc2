package machinedeployment

import (
	"slices"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// asked is how many machines a set shall have. One that is being deleted shall have none.
func asked(set *v1alpha1.MachineSet) int32 {
	if !set.DeletionTimestamp.IsZero() {
		return 0
	}
	return set.Spec.Replicas
}

// existing is how many machines a set has, those being deleted and those still to be
// created included. It is right if the set is settled.
func existing(set *v1alpha1.MachineSet) int32 { return max(set.Status.Replicas, asked(set)) }

// counted is existing without what the set does not ask for any more and keeps all the same,
// since it is preserved. No rollout waits for that to go, or counts it against the surge.
func (f facts) counted(set *v1alpha1.MachineSet) int32 { return max(0, existing(set)-f.held[set.Name]) }

// usable is how many machines of a set are available and shall stay. What a set has
// beyond what it asks for does not count: it is on its way out.
func usable(set *v1alpha1.MachineSet) int32 { return min(set.Status.AvailableReplicas, asked(set)) }

// kept is how many machines of a set failed, and are preserved. A set never deletes those,
// so to take them from what it asks for would take machines that can be used.
func kept(set *v1alpha1.MachineSet) int32 {
	return min(set.Status.PreservedFailedReplicas, asked(set)-usable(set))
}

// settled tells whether the status of a set was written for what it is asked for now. If
// not, it may have machines that its status does not count. A set that reports a failure
// was looked at, too.
func settled(set *v1alpha1.MachineSet) bool {
	return set.Status.ObservedGeneration >= set.Generation ||
		slices.ContainsFunc(set.Status.Conditions, func(c v1alpha1.MachineSetCondition) bool {
			return c.Type == v1alpha1.MachineSetReplicaFailure && c.Status == v1alpha1.ConditionTrue
		})
}

// sum adds up a number of the sets.
func sum(sets []*v1alpha1.MachineSet, number func(*v1alpha1.MachineSet) int32) int32 {
	var total int32
	for _, set := range sets {
		total += number(set)
	}
	return total
}

// replaced tells whether the old sets have no machines and will have none, but for what is
// preserved, and what was until the rollout was over.
func replaced(f facts) bool {
	return finished(f) || !slices.ContainsFunc(f.old, f.occupied)
}

// occupied tells whether a set has machines, or may have some that it did not report yet.
func (f facts) occupied(set *v1alpha1.MachineSet) bool { return !settled(set) || f.counted(set) > 0 }

// allSettled tells whether all sets are settled.
func allSettled(f facts) bool {
	return !slices.ContainsFunc(f.all(), func(set *v1alpha1.MachineSet) bool { return !settled(set) })
}
