package planner

import (
	"slices"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// planSuspended scales, and begins no rollout. One that had begun stops as it is, and its sets are
// scaled together.
func planSuspended(f Facts) []Operation {
	used := inUse(f)
	if len(used) == 0 {
		used = latest(f)
	}
	switch {
	case len(used) > 1 && resized(f) && allSettled(f):
		return planResized(f)
	case len(used) != 1:
		return nil
	}
	replicas := reachable(f, used[0])
	if replicas == used[0].Spec.Replicas {
		return nil
	}
	reason := "the deployment was scaled, and its template is not rolled out"
	if f.Deployment.Spec.Paused {
		reason = "the paused deployment was scaled"
	}
	return []Operation{scaleTo(used[0], replicas, reason)}
}

// reachable returns the replicas of the deployment, or as many of them as the only set in use may
// have now: Machines that a rollout took from others may still exist.
func reachable(f Facts, set *v1alpha1.MachineSet) int32 {
	wanted := f.Deployment.Spec.Replicas
	bounded := f.rolling || Unsupported(f)
	others := slices.ContainsFunc(f.All(), func(other *v1alpha1.MachineSet) bool { return other != set && f.occupied(other) })
	if !bounded || Desired(set) >= wanted || !others && !reduced(f, set) {
		return wanted
	}
	return min(wanted, Desired(set)+room(f))
}

// latest returns the set by which a deployment without Machines is scaled up: the current one, or
// else the newest of the old ones, as in MCM. Machines of a set being deleted have to be gone first.
func latest(f Facts) []*v1alpha1.MachineSet {
	if slices.ContainsFunc(f.Old, func(set *v1alpha1.MachineSet) bool { return !set.DeletionTimestamp.IsZero() && f.occupied(set) }) {
		return nil
	}
	staying := slices.DeleteFunc(f.All(), func(set *v1alpha1.MachineSet) bool { return !set.DeletionTimestamp.IsZero() })
	return staying[max(0, len(staying)-1):]
}

// planResized scales the sets of a suspended rollout: all of them down, the current one up. If that
// has no Machines, the rollout has not begun, and all others are scaled up, too.
func planResized(f Facts) []Operation {
	switch {
	case excess(f) > 0:
		return planScaleDown(f)
	case begun(f):
		return grow(f)
	default:
		return planScaleUp(f)
	}
}

// postponed reports whether a suspended deployment was scaled up, and some of its new Machines have
// to wait until others are gone. Until then some set in use records that it was scaled for another
// size, so that they are not forgotten.
func postponed(f Facts) bool { return suspended(f) && resized(f) && lacking(f) > room(f) }
