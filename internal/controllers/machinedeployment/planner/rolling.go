package planner

import (
	"fmt"
	"slices"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/revision"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// planRolling creates new Machines as far as the surge allows, and removes old ones as far as enough
// stay available. It waits until all sets have reported on their last change, and so knows of every
// Machine.
//
// Both can be planned at the same time: a Machine that does not exist yet allows no removal, and one
// that is removed makes room only when it is gone. But a set that failed may have created Machines
// that it does not know of: it is scaled down first, and reports again before others are created.
func planRolling(f Facts) []Operation {
	if !allSettled(f) {
		return nil
	}
	if resized(f) && excess(f) > 0 {
		return planScaleDown(f)
	}
	smaller := shrink(f)
	if slices.ContainsFunc(smaller, func(op Operation) bool { return !observed(op.Set) }) {
		return smaller
	}
	return append(grow(f), smaller...)
}

// grow gives the current set as many Machines as there is room for. It also removes those beyond the
// replicas of the deployment.
func grow(f Facts) []Operation {
	wanted, room := f.Deployment.Spec.Replicas, room(f)
	why := fmt.Sprintf("%s may exist during the rollout, and %d do", messages.Machines(wanted+f.surge), Total(f.All(), f.Counted))
	if f.Current == nil {
		return []Operation{{Action: Create, Replicas: min(wanted, room), Reason: whyNew(f) + ": " + why}}
	}
	replicas := f.Current.Spec.Replicas
	switch {
	case replicas > wanted:
		return []Operation{scaleTo(f.Current, wanted, wants(f))}
	case replicas == wanted || room == 0:
		return nil
	default:
		return []Operation{scaleTo(f.Current, min(wanted, replicas+room), why)}
	}
}

// room returns how many Machines may be created now. As long as a set did not report, it is unknown.
func room(f Facts) int32 {
	if !allSettled(f) {
		return 0
	}
	return Clamp(int64(f.Deployment.Spec.Replicas+f.surge) - Total(f.All(), f.Counted))
}

// whyNew says why there is no set of the template.
func whyNew(f Facts) string {
	if slices.ContainsFunc(f.Old, func(set *v1alpha1.MachineSet) bool {
		return revision.Same(&set.Spec.Template, &f.Deployment.Spec.Template)
	}) {
		return "the machine set of this template is being deleted" // or it would be the current one
	}
	return "the template changed"
}

// shrink removes Machines of old sets: unavailable ones first, then others while enough stay
// available. In the end the sets have no replicas; preserved Machines stay.
//
// For a while it may leave fewer Machines than the deployment wants. It never leaves so few that too
// few would be available even if all others fail to come up.
func shrink(f Facts) []Operation {
	all := f.All()
	least := int64(f.Deployment.Spec.Replicas-f.unavailable) - Total(all, preservedFailed)
	var missing int32
	if f.Current != nil {
		missing = Desired(f.Current) - Available(f.Current)
	}
	removable := Clamp(Total(all, Desired) - least - int64(missing))
	spare := Clamp(Total(all, Available) - least)

	taken := make([]int32, len(f.Old))
	reasons := make([]string, len(f.Old))
	for i, set := range f.Old {
		taken[i] = min(Desired(set)-Available(set)-preservedFailed(set), removable)
		removable -= taken[i]
		if taken[i] > 0 {
			reasons[i] = fmt.Sprintf("%d of its machines %s unavailable", taken[i], messages.Are(taken[i]))
		}
	}
	for i, set := range f.Old {
		useful := min(Available(set), removable, spare)
		removable, spare = removable-useful, spare-useful
		taken[i] += useful
		if useful > 0 {
			reasons[i] = join(reasons[i], fmt.Sprintf("%d can be spared, since %d of all %s available and %d %s to be", useful, Total(all, Available), messages.Are(Total(all, Available)), max(0, least), messages.Have(max(0, least))))
		}
		if onlyPreservedLeft(f) {
			taken[i] = Desired(set)
			reasons[i] = join(reasons[i], "it has none left but those that are preserved, which stay")
		}
	}
	var operations []Operation
	for i, set := range f.Old {
		if taken[i] > 0 {
			operations = append(operations, scaleTo(set, Desired(set)-taken[i], reasons[i]))
		}
	}
	return operations
}

// onlyPreservedLeft reports whether the old sets have preserved Machines and no others.
func onlyPreservedLeft(f Facts) bool {
	rest := Total(f.Old, preservedFailed)
	return f.Current != nil && rest > 0 && Total(f.Old, Desired) == rest && Available(f.Current) == Desired(f.Current)
}

func join(a, b string) string {
	if a == "" {
		return b
	}
	return a + ", and " + b
}
