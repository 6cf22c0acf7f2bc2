package machinedeployment

import (
	"fmt"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// operation is one thing to do, and why: to create the set of the current template, or
// to scale a set.
type operation struct {
	// set to scale; nil to create the current one.
	set *v1alpha1.MachineSet
	// replicas that the set gets.
	replicas int32
	reason   string
}

// plan says what brings the deployment closer to what is asked for.
func plan(f facts) []operation {
	if f.deployment.Spec.Strategy.Type == v1alpha1.InPlaceUpdateMachineDeploymentStrategyType && len(f.old) > 0 && f.current == nil {
		return nil // said in the status
	}
	if f.deployment.Spec.Paused {
		return planPaused(f)
	}
	if len(f.old) == 0 || replicas(f.old) == 0 && existing(f.old) == 0 {
		return planCurrent(f, f.deployment.Spec.Replicas)
	}
	if f.deployment.Spec.Strategy.Type == v1alpha1.RecreateMachineDeploymentStrategyType {
		return planRecreate(f)
	}
	return planRolling(f)
}

// planCurrent gives the current set its number.
func planCurrent(f facts, wanted int32) []operation {
	if f.current == nil {
		return []operation{{replicas: wanted, reason: "there is no machine set for this template yet"}}
	}
	if f.current.Spec.Replicas == wanted {
		return nil
	}
	return []operation{{set: f.current, replicas: wanted, reason: fmt.Sprintf("the deployment wants %d machines", f.deployment.Spec.Replicas)}}
}

// planPaused scales the set that is in use, and begins no rollout.
func planPaused(f facts) []operation {
	var used []*v1alpha1.MachineSet
	for _, set := range f.all() {
		if set.Spec.Replicas > 0 {
			used = append(used, set)
		}
	}
	if len(used) == 0 && f.current != nil {
		used = append(used, f.current)
	}
	if len(used) != 1 || used[0].Spec.Replicas == f.deployment.Spec.Replicas {
		return nil
	}
	return []operation{{set: used[0], replicas: f.deployment.Spec.Replicas, reason: "the paused deployment was scaled"}}
}

// planRecreate removes all old machines before it makes the first new one.
func planRecreate(f facts) []operation {
	var operations []operation
	for _, set := range f.old {
		if set.Spec.Replicas > 0 {
			operations = append(operations, operation{set: set, reason: "the strategy Recreate removes all old machines first"})
		}
	}
	return operations
}

// planRolling makes new machines as far as the surge allows, and removes old ones as far
// as enough stay available.
func planRolling(f facts) []operation {
	operations := planCurrent(f, growTo(f))
	if len(operations) > 0 {
		return operations
	}
	return shrinkOld(f)
}

// growTo is the number that the current set may have now.
func growTo(f facts) int32 {
	wanted := f.deployment.Spec.Replicas
	var asks, has int32
	if f.current != nil {
		asks, has = f.current.Spec.Replicas, existing([]*v1alpha1.MachineSet{f.current})
	}
	if asks >= wanted {
		return wanted
	}
	room := wanted + f.surge - existing(f.old) - has
	return min(wanted, asks+max(0, room))
}

// shrinkOld removes machines of old sets: first those that are of no use anyway, then
// others while enough stay available.
func shrinkOld(f facts) []operation {
	least := f.deployment.Spec.Replicas - f.unavailable
	missing := f.current.Spec.Replicas - availableOf([]*v1alpha1.MachineSet{f.current})
	room := replicas(f.all()) - least - missing
	spare := availableOf(f.all()) - least

	var operations []operation
	for _, set := range f.old {
		useless := min(set.Spec.Replicas-availableOf([]*v1alpha1.MachineSet{set}), max(0, room))
		room -= useless
		useful := min(set.Spec.Replicas-useless, max(0, room), max(0, spare))
		room, spare = room-useful, spare-useful
		if useless+useful > 0 {
			operations = append(operations, operation{
				set: set, replicas: set.Spec.Replicas - useless - useful,
				reason: fmt.Sprintf("%d of its machines are unavailable, and %d can be spared", useless, useful),
			})
		}
	}
	return operations
}
