package rollout

import (
	"slices"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/counts"
)

// planSuspended only scales. If a rollout had begun, its sets are scaled together.
func planSuspended(r *Rollout) []Operation {
	used := r.used
	if len(used) == 0 {
		used = latest(r)
	}
	several := len(used) > 1 && r.resized && r.settled
	switch {
	case several && r.excess > 0:
		return planScaleDown(r)
	case several && r.begun:
		return grow(r)
	case several:
		return planScaleUp(r)
	case len(used) != 1:
		return nil
	}
	replicas := reachable(r, used[0])
	if replicas == used[0].Spec.Replicas {
		return nil
	}
	reason := "the deployment was scaled; its template is not being rolled out"
	if r.Deployment.Spec.Paused {
		reason = "the paused deployment was scaled"
	}
	return []Operation{scaleTo(used[0], replicas, reason)}
}

// reachable returns how many replicas the only set in use may have now: those of the deployment, or fewer while
// Machines that a rollout took from other sets may still exist.
func reachable(r *Rollout, set *v1alpha1.MachineSet) int32 {
	bounded := r.rolling || r.inPlace || r.Unsupported
	others := slices.ContainsFunc(r.sets, func(other *v1alpha1.MachineSet) bool { return other != set && r.occupied(other) })
	if !bounded || counts.Desired(set) >= r.Desired || !others && !r.reduced(set) {
		return r.Desired
	}
	return min(r.Desired, counts.Desired(set)+r.creatable)
}

// latest returns the set to use when a deployment without Machines is scaled up: the current set, or else the
// newest one, as in MCM. It returns none until the Machines of sets that are being deleted are gone.
func latest(r *Rollout) []*v1alpha1.MachineSet {
	if slices.ContainsFunc(r.Old, func(set *v1alpha1.MachineSet) bool { return !set.DeletionTimestamp.IsZero() && r.occupied(set) }) {
		return nil
	}
	staying := slices.DeleteFunc(slices.Clone(r.sets), func(set *v1alpha1.MachineSet) bool { return !set.DeletionTimestamp.IsZero() })
	return staying[max(0, len(staying)-1):]
}
