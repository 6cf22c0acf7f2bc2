package machinedeployment

import (
	"slices"
	"strconv"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// action is what an operation does.
type action string

const (
	create  action = "create"
	scale   action = "scale"
	adopt   action = "adopt"
	release action = "release"
	// refresh brings what a set takes over from the deployment up to date.
	refresh action = "refresh"
	// prune deletes an old set that the history has no place for.
	prune action = "prune"
	// mark tells a set which Machine to delete first.
	mark action = "mark"
	// patchNodes changes nodes.
	patchNodes action = "patch nodes"
	// rollBack gives the deployment the template of an old set.
	rollBack action = "roll back"
	// refuse answers a wish to roll back that cannot be met.
	refuse action = "refuse"
)

// operation is one thing to do, and why.
type operation struct {
	action action
	// set that it is about; nil for the creation of the current one.
	set *v1alpha1.MachineSet
	// replicas that the set gets by being created or scaled.
	replicas int32
	// size of the deployment that a set is scaled for; 0 is the one that is wanted.
	size int32
	// machine that is marked, and since when.
	machine *v1alpha1.Machine
	since   string
	// nodes that are patched.
	nodes  []nodeChange
	reason string
	// topic is the reason of the event that tells of it, where that is not the same for
	// all operations of that action. Nodes without a topic are only logged.
	topic string
}

// ends reports whether the pass ends with an operation: what comes next is planned when the
// caches show what it did.
func (op operation) ends() bool {
	return slices.Contains([]action{adopt, release, mark, rollBack, refuse}, op.action)
}

// plan says what brings the deployment closer to what is asked for. Before anything is
// counted, it has to be clear which sets are the deployment's, which template is wanted,
// and which Machines go first.
func plan(f facts) []operation {
	for _, first := range []func(facts) []operation{claim, planRollback, planNamed} {
		if operations := first(f); len(operations) > 0 {
			return operations
		}
	}
	replicas := withhold(f, planReplicas(f))
	operations := append(planNodes(f), replicas...)
	operations = append(operations, planRefresh(f, replicas)...)
	return append(operations, planHistory(f)...)
}

// planReplicas creates the current set, and scales all of them.
func planReplicas(f facts) []operation {
	switch {
	case halted(f): // why, is said in the status
		return planHalted(f)
	case replaced(f) && !(f.current != nil && reduced(f, f.current)):
		return planCurrent(f)
	case f.deployment.Spec.Strategy.Type == v1alpha1.RecreateMachineDeploymentStrategyType:
		return planRecreate(f)
	default:
		return planRolling(f)
	}
}

// halted reports whether no machine is replaced now.
func halted(f facts) bool { return f.deployment.Spec.Paused || unsupported(f) }

// unsupported reports whether machines would have to be updated in place. They stay as they are
// then: to replace them instead is what the strategy is there to avoid. Those of a set that
// is being deleted go in any case.
func unsupported(f facts) bool {
	return f.deployment.Spec.Strategy.Type == v1alpha1.InPlaceUpdateMachineDeploymentStrategyType && !finished(f) &&
		slices.ContainsFunc(f.old, func(set *v1alpha1.MachineSet) bool { return set.DeletionTimestamp.IsZero() && f.occupied(set) })
}

// claim adopts strays, and releases sets that do not match any more.
func claim(f facts) []operation {
	var operations []operation
	selector := selection(f.deployment)
	for _, set := range f.all() {
		if set.DeletionTimestamp.IsZero() && !matches(selector, set) {
			operations = append(operations, operation{action: release, set: set, reason: "its labels do not match the selector any more"})
		}
	}
	for _, set := range f.strays {
		operations = append(operations, operation{action: adopt, set: set, reason: "it has no owner and its labels match the selector"})
	}
	return operations
}

// planCurrent gives the current set all machines.
func planCurrent(f facts) []operation {
	wanted := f.deployment.Spec.Replicas
	if f.current == nil {
		return []operation{{action: create, replicas: wanted, reason: "there is no machine set for this template yet"}}
	}
	if f.current.Spec.Replicas == wanted {
		return nil
	}
	return []operation{{action: scale, set: f.current, replicas: wanted, reason: "the deployment wants " + messages.Machines(wanted)}}
}

// reduced reports whether a set has to grow though nobody scaled the deployment since the set
// was last scaled. So a rollout took machines from it, which may still be on their way out:
// the bounds of a rollout hold on.
func reduced(f facts, set *v1alpha1.MachineSet) bool {
	if !f.rolling || asked(set) >= f.deployment.Spec.Replicas {
		return false
	}
	return set.Annotations[v1alpha1.AnnotationKeyDesiredReplicas] == strconv.Itoa(int(f.deployment.Spec.Replicas))
}

// planHalted scales, and begins no rollout. One that had begun stops as it is, and its sets
// are scaled together.
func planHalted(f facts) []operation {
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
	if f.deployment.Spec.Paused {
		reason = "the paused deployment was scaled"
	}
	return []operation{{action: scale, set: used[0], replicas: replicas, reason: reason}}
}

// reachable is the size of the deployment, or as much of it as the only set in use may have
// now: machines that a rollout took from others may still be on their way out.
func reachable(f facts, set *v1alpha1.MachineSet) int32 {
	wanted := f.deployment.Spec.Replicas
	bounded := f.rolling || unsupported(f)
	others := slices.ContainsFunc(f.all(), func(other *v1alpha1.MachineSet) bool { return other != set && f.occupied(other) })
	if !bounded || asked(set) >= wanted || !others && !reduced(f, set) {
		return wanted
	}
	return min(wanted, asked(set)+room(f))
}

// latest is the set by which a deployment is scaled up that has none in use: the current one,
// or else the newest of the old ones, as in MCM. Machines of a set that is being deleted
// have to be gone first.
func latest(f facts) []*v1alpha1.MachineSet {
	if slices.ContainsFunc(f.old, func(set *v1alpha1.MachineSet) bool { return !set.DeletionTimestamp.IsZero() && f.occupied(set) }) {
		return nil
	}
	staying := slices.DeleteFunc(f.all(), func(set *v1alpha1.MachineSet) bool { return !set.DeletionTimestamp.IsZero() })
	return staying[max(0, len(staying)-1):]
}

// planResized scales the sets of a rollout that is halted: down all of them, up the current
// one. If that has no part in it, all others are scaled up, too: a rollout to the current
// template has not begun.
func planResized(f facts) []operation {
	switch {
	case excess(f) > 0:
		return planScaleDown(f)
	case begun(f):
		return grow(f)
	default:
		return planScaleUp(f)
	}
}

// planRecreate removes all old machines before it makes the first new one.
func planRecreate(f facts) []operation {
	var operations []operation
	for _, set := range f.old {
		if asked(set) > 0 {
			operations = append(operations, operation{action: scale, set: set, reason: "the strategy Recreate removes all old machines first"})
		}
	}
	return operations
}
