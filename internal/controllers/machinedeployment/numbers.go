package machinedeployment

import (
	"math"
	"slices"
	"time"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/preservation"
)

// asked is how many machines a set shall have. One that is being deleted shall have none. This
// and all numbers below are never negative, whatever somebody wrote into a set.
func asked(set *v1alpha1.MachineSet) int32 {
	if !set.DeletionTimestamp.IsZero() {
		return 0
	}
	return max(0, set.Spec.Replicas)
}

// existing is how many machines a set has, those being deleted and those still to be
// created included. It is right if the set is settled.
func existing(set *v1alpha1.MachineSet) int32 { return max(set.Status.Replicas, asked(set)) }

// counted is existing without what the set does not ask for any more and keeps all the same,
// since it is preserved. No rollout waits for that to go, or counts it against the surge.
func (f facts) counted(set *v1alpha1.MachineSet) int32 { return max(0, existing(set)-f.held[set.Name]) }

// held is how many of its machines a set keeps beyond what it asks for: it never deletes those that
// are preserved, and no other one in place of one that was named.
func held(set *v1alpha1.MachineSet, machines []*v1alpha1.Machine, now time.Time) int32 {
	var active, spared, picked int32
	for _, machine := range machines {
		if !machine.DeletionTimestamp.IsZero() {
			continue
		}
		active++
		if preservation.Active(machine, now) {
			spared++
			if seenAsNamed(machine, set) {
				picked++
			}
		}
	}
	beyond := max(spared-asked(set), min(picked, active-asked(set)))
	return max(0, min(beyond, existing(set)-asked(set)))
}

// usable is how many machines of a set are available and shall stay. What a set has
// beyond what it asks for does not count: it is on its way out.
func usable(set *v1alpha1.MachineSet) int32 {
	return max(0, min(set.Status.AvailableReplicas, asked(set)))
}

// kept is how many machines of a set failed, and are preserved. A set never deletes those,
// so to take them from what it asks for would take machines that can be used.
func kept(set *v1alpha1.MachineSet) int32 {
	return max(0, min(set.Status.PreservedFailedReplicas, asked(set)-usable(set)))
}

// settled reports whether the status of a set was written for what it is asked for now. If
// not, it may have machines that its status does not count. A set that reports a failure
// was looked at, too, unless that is an old one: a set that has what it is asked for makes none.
func settled(set *v1alpha1.MachineSet) bool {
	return reported(set) ||
		slices.ContainsFunc(set.Status.Conditions, func(c v1alpha1.MachineSetCondition) bool {
			old := c.Reason == reasonFailedCreate && usable(set) == asked(set)
			return c.Type == v1alpha1.MachineSetReplicaFailure && c.Status == v1alpha1.ConditionTrue && !old
		})
}

// reported reports whether a set has looked at what it is asked for now, and nothing failed.
func reported(set *v1alpha1.MachineSet) bool { return set.Status.ObservedGeneration >= set.Generation }

// total adds up a number of the sets, of which negative ones count as 0. The sum of some may be
// more than one can have.
func total(sets []*v1alpha1.MachineSet, number func(*v1alpha1.MachineSet) int32) int64 {
	var sum int64
	for _, set := range sets {
		sum += int64(max(0, number(set)))
	}
	return sum
}

// bounded is a number of machines as an object can hold it.
func bounded(n int64) int32 { return int32(min(max(0, n), math.MaxInt32)) }

// plus adds what a set reports to a number of machines.
func plus(n, reported int32) int32 { return bounded(int64(n) + int64(max(0, reported))) }

// replaced reports whether the old sets have no machines and will have none, but for what is
// preserved, and what was until the rollout was over.
func replaced(f facts) bool {
	return finished(f) || !slices.ContainsFunc(f.old, f.occupied)
}

// occupied reports whether a set has machines, or may have some that it did not report yet.
func (f facts) occupied(set *v1alpha1.MachineSet) bool { return !settled(set) || f.counted(set) > 0 }

// allSettled reports whether all sets are settled.
func allSettled(f facts) bool {
	return !slices.ContainsFunc(f.all(), func(set *v1alpha1.MachineSet) bool { return !settled(set) })
}
