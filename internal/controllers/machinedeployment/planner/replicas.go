package planner

import (
	"math"
	"slices"
	"time"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/preservation"
)

// reasonFailedCreate is the reason of a set's ReplicaFailure when it cannot create Machines.
const reasonFailedCreate = "FailedCreate"

// Desired returns how many Machines a set is to have, which is 0 for one being deleted. This and all
// numbers below are never negative, whatever somebody wrote into a set.
func Desired(set *v1alpha1.MachineSet) int32 {
	if !set.DeletionTimestamp.IsZero() {
		return 0
	}
	return max(0, set.Spec.Replicas)
}

// Existing returns how many Machines a set has, including those being deleted and those still to be
// created. It is right if the set is settled.
func Existing(set *v1alpha1.MachineSet) int32 { return max(set.Status.Replicas, Desired(set)) }

// Counted returns the existing Machines of a set without those retained. No rollout waits for the
// latter, or counts them towards the surge.
func (f Facts) Counted(set *v1alpha1.MachineSet) int32 {
	return max(0, Existing(set)-f.Retained[set.Name])
}

// Retained returns how many Machines a set keeps beyond its replicas: it never deletes preserved
// ones, and no other in place of a preserved one that was named for deletion.
func Retained(set *v1alpha1.MachineSet, machines []*v1alpha1.Machine, now time.Time) int32 {
	var active, preserved, named int32
	for _, machine := range machines {
		if !machine.DeletionTimestamp.IsZero() {
			continue
		}
		active++
		if preservation.Active(machine, now) {
			preserved++
			if countsAsNamed(machine, set) {
				named++
			}
		}
	}
	beyond := max(preserved-Desired(set), min(named, active-Desired(set)))
	return max(0, min(beyond, Existing(set)-Desired(set)))
}

// Available returns how many Machines of a set are available and stay. Those beyond its replicas do
// not count: they are about to go.
func Available(set *v1alpha1.MachineSet) int32 {
	return max(0, min(set.Status.AvailableReplicas, Desired(set)))
}

// preservedFailed returns how many Machines of a set failed and are preserved. A set never deletes
// those, so lowering its replicas on their account would delete Machines that can be used.
func preservedFailed(set *v1alpha1.MachineSet) int32 {
	return max(0, min(set.Status.PreservedFailedReplicas, Desired(set)-Available(set)))
}

// settled reports whether the status of a set was written for its current spec. If not, the set may
// have Machines that its status does not count. One that reports a failure has read its spec, too,
// unless the failure is old: a set with all its replicas creates none.
func settled(set *v1alpha1.MachineSet) bool {
	return observed(set) ||
		slices.ContainsFunc(set.Status.Conditions, func(c v1alpha1.MachineSetCondition) bool {
			old := c.Reason == reasonFailedCreate && Available(set) == Desired(set)
			return c.Type == v1alpha1.MachineSetReplicaFailure && c.Status == v1alpha1.ConditionTrue && !old
		})
}

// observed reports whether a set has carried out its current spec without a failure.
func observed(set *v1alpha1.MachineSet) bool {
	return set.Status.ObservedGeneration >= set.Generation
}

// allSettled reports whether all sets are settled.
func allSettled(f Facts) bool {
	return !slices.ContainsFunc(f.All(), func(set *v1alpha1.MachineSet) bool { return !settled(set) })
}

// Total adds up a number of the sets, of which negative ones count as 0. The sum may exceed what a
// field can hold.
func Total(sets []*v1alpha1.MachineSet, number func(*v1alpha1.MachineSet) int32) int64 {
	var sum int64
	for _, set := range sets {
		sum += int64(max(0, number(set)))
	}
	return sum
}

// Clamp returns a number of Machines as a field can hold it.
func Clamp(n int64) int32 { return int32(min(max(0, n), math.MaxInt32)) }

// occupied reports whether a set has Machines, or may have some that it did not report yet.
func (f Facts) occupied(set *v1alpha1.MachineSet) bool { return !settled(set) || f.Counted(set) > 0 }

// replaced reports whether no Machines of old sets are left but for retained ones, or the rollout was
// complete before.
func replaced(f Facts) bool {
	return WasComplete(f) || !slices.ContainsFunc(f.Old, f.occupied)
}

// RolledOut reports whether all Machines are of the current set and available.
func RolledOut(f Facts) bool {
	wanted := f.Deployment.Spec.Replicas
	return f.Current != nil && replaced(f) && settled(f.Current) && Desired(f.Current) == wanted &&
		f.Counted(f.Current) == wanted && Available(f.Current) == wanted
}
