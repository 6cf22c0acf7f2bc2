package machinedeployment

import (
	"fmt"
	"slices"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/revision"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// planRolling makes new machines as far as the surge allows, and removes old ones as far
// as enough stay available. It waits until all sets have reported on what they were asked
// for before, and so knows of every machine.
//
// Both can be planned at the same time: a machine that does not exist yet gives no room
// for a removal, and a machine that is removed gives room for a new one only when it is
// gone. But a set that failed may have made machines that it does not know of: what is taken from
// it comes first, and it reports again before others are made.
func planRolling(f facts) []operation {
	if !allSettled(f) {
		return nil
	}
	if resized(f) && excess(f) > 0 {
		return planScaleDown(f)
	}
	smaller := shrink(f)
	if slices.ContainsFunc(smaller, func(op operation) bool { return !reported(op.set) }) {
		return smaller
	}
	return append(grow(f), smaller...)
}

// grow gives the current set as many machines as there is room for. It also takes from
// it what the deployment does not want any more.
func grow(f facts) []operation {
	wanted, room := f.deployment.Spec.Replicas, room(f)
	why := fmt.Sprintf("%s may exist during the rollout, and %d do", messages.Machines(wanted+f.surge), total(f.all(), f.counted))
	if f.current == nil {
		return []operation{{action: create, replicas: min(wanted, room), reason: whyNew(f) + ": " + why}}
	}
	asks := f.current.Spec.Replicas
	switch {
	case asks > wanted:
		return []operation{{action: scale, set: f.current, replicas: wanted, reason: "the deployment wants " + messages.Machines(wanted)}}
	case asks == wanted || room == 0:
		return nil
	default:
		return []operation{{action: scale, set: f.current, replicas: min(wanted, asks+room), reason: why}}
	}
}

// room is how many machines may be made now. As long as a set did not report, nobody knows.
func room(f facts) int32 {
	if !allSettled(f) {
		return 0
	}
	return bounded(int64(f.deployment.Spec.Replicas+f.surge) - total(f.all(), f.counted))
}

// whyNew says why there is no set of the template.
func whyNew(f facts) string {
	if slices.ContainsFunc(f.old, func(set *v1alpha1.MachineSet) bool {
		return revision.Same(&set.Spec.Template, &f.deployment.Spec.Template)
	}) {
		return "the machine set of this template is being deleted" // or it would be the current one
	}
	return "the template changed"
}

// shrink removes machines of old sets: those of no use first, then others while enough
// stay available. In the end the sets ask for none; those that are preserved stay.
//
// For a while it may leave fewer machines than the deployment wants. It never leaves so
// few that less than the least would be available even if all others fail to come up.
func shrink(f facts) []operation {
	all := f.all()
	least := int64(f.deployment.Spec.Replicas-f.unavailable) - total(all, kept)
	var missing int32
	if f.current != nil {
		missing = asked(f.current) - usable(f.current)
	}
	room := bounded(total(all, asked) - least - int64(missing))
	spare := bounded(total(all, usable) - least)

	taken := make([]int32, len(f.old))
	reasons := make([]string, len(f.old))
	for i, set := range f.old {
		taken[i] = min(asked(set)-usable(set)-kept(set), room)
		room -= taken[i]
		if taken[i] > 0 {
			reasons[i] = fmt.Sprintf("%d of its machines %s unavailable", taken[i], messages.Are(taken[i]))
		}
	}
	for i, set := range f.old {
		useful := min(usable(set), room, spare)
		room, spare = room-useful, spare-useful
		taken[i] += useful
		if useful > 0 {
			reasons[i] = join(reasons[i], fmt.Sprintf("%d can be spared, since %d of all %s available and %d %s to be", useful, total(all, usable), messages.Are(total(all, usable)), max(0, least), messages.Have(max(0, least))))
		}
		if last(f) {
			taken[i] = asked(set)
			reasons[i] = join(reasons[i], "it has none left but those that are preserved, which stay")
		}
	}
	var operations []operation
	for i, set := range f.old {
		if taken[i] > 0 {
			operations = append(operations, operation{action: scale, set: set, replicas: asked(set) - taken[i], reason: reasons[i]})
		}
	}
	return operations
}

// last reports whether the rollout is over but for machines that are preserved.
func last(f facts) bool {
	rest := total(f.old, kept)
	return f.current != nil && rest > 0 && total(f.old, asked) == rest && usable(f.current) == asked(f.current)
}

func join(a, b string) string {
	if a == "" {
		return b
	}
	return a + ", and " + b
}
