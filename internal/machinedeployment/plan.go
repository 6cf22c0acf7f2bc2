package machinedeployment

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// action is what an operation does.
type action string

const (
	create  action = "create"
	scale   action = "scale"
	adopt   action = "adopt"
	release action = "release"
)

// operation is one thing to do, and why.
type operation struct {
	action action
	// set that is scaled, adopted or released; nil for the creation of the current one.
	set *v1alpha1.MachineSet
	// replicas that the set gets by being created or scaled.
	replicas int32
	reason   string
}

// claims tells whether an operation changes which sets are the deployment's.
func (op operation) claims() bool { return op.action == adopt || op.action == release }

// plan says what brings the deployment closer to what is asked for. Before anything is
// counted, it has to be clear which sets are the deployment's.
func plan(f facts) []operation {
	if operations := claim(f); len(operations) > 0 {
		return operations
	}
	switch {
	case f.deployment.Spec.Paused:
		return planPaused(f)
	case empty(f.old) && !backtracked(f):
		return planCurrent(f)
	case unsupported(f):
		return nil // said in the status
	case f.deployment.Spec.Strategy.Type == v1alpha1.RecreateMachineDeploymentStrategyType:
		return planRecreate(f)
	default:
		return planRolling(f)
	}
}

// unsupported tells whether machines would have to be updated in place. Nothing is done
// then: to replace them instead is what the strategy is there to avoid.
func unsupported(f facts) bool {
	return f.deployment.Spec.Strategy.Type == v1alpha1.InPlaceUpdateMachineDeploymentStrategyType && !empty(f.old)
}

// claim adopts strays, and releases sets that do not match any more.
func claim(f facts) []operation {
	var operations []operation
	for _, set := range f.all() {
		if set.DeletionTimestamp.IsZero() && !selects(f.deployment, set) {
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
	return []operation{{action: scale, set: f.current, replicas: wanted, reason: fmt.Sprintf("the deployment wants %d machines", wanted)}}
}

// backtracked tells whether the current set has to grow though nobody scaled the deployment
// since it was last scaled itself. So it was an old set for a while, and machines that a
// rollout took from it may still be on their way out: the bounds of a rollout hold on.
func backtracked(f facts) bool {
	if f.current == nil || !f.rolling || asked(f.current) >= f.deployment.Spec.Replicas {
		return false
	}
	return f.current.Annotations[v1alpha1.AnnotationKeyDesiredReplicas] == strconv.Itoa(int(f.deployment.Spec.Replicas))
}

// planPaused scales the set that is in use, and begins no rollout.
func planPaused(f facts) []operation {
	used := slices.DeleteFunc(f.all(), func(set *v1alpha1.MachineSet) bool { return asked(set) == 0 })
	if len(used) == 0 && f.current != nil {
		used = append(used, f.current)
	}
	if len(used) != 1 || used[0].Spec.Replicas == f.deployment.Spec.Replicas {
		return nil
	}
	return []operation{{action: scale, set: used[0], replicas: f.deployment.Spec.Replicas, reason: "the paused deployment was scaled"}}
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
