// Package counts counts the Machines of a MachineSet.
//
// No count is negative, whatever the status of a set contains.
package counts

import (
	"math"
	"slices"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// Active reports whether a Machine counts, which means that it is not being deleted. Its phase is ignored:
// after a restore from a backup, a Machine may be Terminating without being deleted.
func Active(machine *v1alpha1.Machine) bool { return machine.DeletionTimestamp.IsZero() }

// Usable reports whether Pods can run on the node of a Machine, according to its phase.
func Usable(machine *v1alpha1.Machine) bool {
	phase := machine.Status.CurrentStatus.Phase
	return phase == v1alpha1.MachineRunning || phase == v1alpha1.MachineAvailable
}

// Desired returns how many Machines a set should have. It is 0 for a set that is being deleted.
func Desired(set *v1alpha1.MachineSet) int32 {
	if !set.DeletionTimestamp.IsZero() {
		return 0
	}
	return max(0, set.Spec.Replicas)
}

// Existing returns how many Machines a settled set has or is about to have.
func Existing(set *v1alpha1.MachineSet) int32 { return max(set.Status.Replicas, Desired(set)) }

// Available returns how many Machines of a set are available. It is at most the set's replicas, because other
// Machines are about to be deleted.
func Available(set *v1alpha1.MachineSet) int32 {
	return max(0, min(set.Status.AvailableReplicas, Desired(set)))
}

// PreservedFailed returns how many Machines of a set failed and are preserved. A set never deletes them, so
// lowering its replicas by this number would delete usable Machines.
func PreservedFailed(set *v1alpha1.MachineSet) int32 {
	return max(0, min(set.Status.PreservedFailedReplicas, Desired(set)-Available(set)))
}

// Settled reports whether the status of a set was written for its current spec, so that it counts all Machines.
// A set that reports a failure has also read its spec, unless the failure is old: a set that has all its
// replicas creates no Machines.
func Settled(set *v1alpha1.MachineSet) bool {
	return Observed(set) ||
		slices.ContainsFunc(set.Status.Conditions, func(c v1alpha1.MachineSetCondition) bool {
			old := c.Reason == v1alpha1.MachineSetReasonFailedCreate && Available(set) == Desired(set)
			return c.Type == v1alpha1.MachineSetReplicaFailure && c.Status == v1alpha1.ConditionTrue && !old
		})
}

// Observed reports whether a set has carried out its current spec without a failure.
func Observed(set *v1alpha1.MachineSet) bool {
	return set.Status.ObservedGeneration >= set.Generation
}

// Total returns the sum of a count over all sets. Negative counts are treated as 0.
func Total(sets []*v1alpha1.MachineSet, number func(*v1alpha1.MachineSet) int32) int64 {
	var sum int64
	for _, set := range sets {
		sum += int64(max(0, number(set)))
	}
	return sum
}

// Clamp converts a number of Machines to the range of an API field.
func Clamp(n int64) int32 { return int32(min(max(0, n), math.MaxInt32)) }
