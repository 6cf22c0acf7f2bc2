package rollout

import (
	"fmt"
	"slices"
	"time"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/preservation"
	"github.com/millwright-dev/millwright/internal/pool/counts"
	"github.com/millwright-dev/millwright/internal/pool/inplace"
	"github.com/millwright-dev/millwright/internal/pool/reserve"
	"github.com/millwright-dev/millwright/internal/pool/revision"
	"github.com/millwright-dev/millwright/internal/pool/scale"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// planRolling creates new Machines as far as the surge allows, and removes old ones as far as enough
// stay available. It waits until all sets are settled, so that all Machines are counted.
//
// Both are planned at the same time: a Machine that does not exist yet allows no removal, and one that
// is removed makes room only when it is gone. But a set that failed may have created Machines that it
// does not count: it is scaled down and reports again before others are created.
func planRolling(f Facts) []Operation {
	if !allSettled(f) {
		return nil
	}
	if resized(f) && excess(f) > 0 {
		return planScaleDown(f)
	}
	smaller := shrink(f)
	if slices.ContainsFunc(smaller, func(op Operation) bool { return !counts.Observed(op.Set) }) {
		return smaller
	}
	return append(grow(f), smaller...)
}

// grow gives the current set as many Machines as there is room for, at most the deployment's replicas.
func grow(f Facts) []Operation {
	wanted, room := reserve.Wanted(f.Deployment), room(f)
	why := fmt.Sprintf("%s may exist during the rollout, and %d do", messages.Machines(wanted+f.surge), counts.Total(f.All(), f.Counted))
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

// room returns how many Machines may be created now. It is known when all sets are settled.
func room(f Facts) int32 {
	if !allSettled(f) {
		return 0
	}
	return counts.Clamp(int64(reserve.Wanted(f.Deployment)+f.surge) - counts.Total(f.All(), f.Counted))
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
// It may leave fewer Machines than the deployment wants, but enough available ones even if all others
// fail to come up.
func shrink(f Facts) []Operation {
	all := f.All()
	least := int64(reserve.Wanted(f.Deployment)-f.unavailable) - counts.Total(all, counts.PreservedFailed)
	var missing int32
	if f.Current != nil {
		missing = counts.Desired(f.Current) - counts.Available(f.Current)
	}
	removable := counts.Clamp(counts.Total(all, counts.Desired) - least - int64(missing))
	spare := counts.Clamp(counts.Total(all, counts.Available) - least)

	taken := make([]int32, len(f.Old))
	reasons := make([]string, len(f.Old))
	for i, set := range f.Old {
		taken[i] = min(counts.Desired(set)-counts.Available(set)-counts.PreservedFailed(set), removable)
		removable -= taken[i]
		if taken[i] > 0 {
			reasons[i] = fmt.Sprintf("%d of its machines %s unavailable", taken[i], messages.Are(taken[i]))
		}
	}
	for i, set := range f.Old {
		useful := min(counts.Available(set), removable, spare)
		removable, spare = removable-useful, spare-useful
		taken[i] += useful
		if useful > 0 {
			available, least := counts.Total(all, counts.Available), max(0, least)
			reasons[i] = join(reasons[i], fmt.Sprintf("%d can be spared, since %d of all %s available and %d %s to be", useful, available, messages.Are(available), least, messages.Have(least)))
		}
		if onlyPreservedLeft(f) {
			taken[i] = counts.Desired(set)
			reasons[i] = join(reasons[i], "it has none left but those that are preserved, which stay")
		}
	}
	var operations []Operation
	for i, set := range f.Old {
		if taken[i] > 0 {
			operations = append(operations, scaleTo(set, counts.Desired(set)-taken[i], reasons[i]))
		}
	}
	return operations
}

// onlyPreservedLeft reports whether the old sets have preserved Machines and no others.
func onlyPreservedLeft(f Facts) bool {
	rest := counts.Total(f.Old, counts.PreservedFailed)
	return f.Current != nil && rest > 0 && counts.Total(f.Old, counts.Desired) == rest && counts.Available(f.Current) == counts.Desired(f.Current)
}

func join(a, b string) string {
	if a == "" {
		return b
	}
	return a + ", and " + b
}

// Counted returns how many Machines of a set exist and are not retained. Rollouts do not wait for
// retained ones, nor count them towards the surge.
func (f Facts) Counted(set *v1alpha1.MachineSet) int32 {
	return max(0, counts.Existing(set)-f.Retained[set.Name])
}

// Retained returns how many Machines a set keeps beyond its replicas: it deletes no preserved Machine,
// and no other instead of a preserved one that was named for deletion.
func Retained(set *v1alpha1.MachineSet, machines []*v1alpha1.Machine, now time.Time) int32 {
	var active, preserved, named int32
	for _, machine := range machines {
		if !scale.Active(machine) {
			continue
		}
		active++
		if preservation.Active(machine, now) {
			preserved++
			if scale.Named(machine, set) {
				named++
			}
		}
	}
	beyond := max(preserved-counts.Desired(set), min(named, active-counts.Desired(set)))
	return max(0, min(beyond, counts.Existing(set)-counts.Desired(set)))
}

func allSettled(f Facts) bool {
	return !slices.ContainsFunc(f.All(), func(set *v1alpha1.MachineSet) bool { return !counts.Settled(set) })
}

// occupied reports whether a set has Machines, or may have some that it did not report yet.
func (f Facts) occupied(set *v1alpha1.MachineSet) bool {
	return !counts.Settled(set) || f.Counted(set) > 0 || inplace.Moved(f.machines[set.Name]) > 0
}

// replaced reports whether old sets have only retained Machines, or the rollout was complete before.
func replaced(f Facts) bool {
	return WasComplete(f) || !slices.ContainsFunc(f.Old, f.occupied)
}

// RolledOut reports whether all Machines are of the current set and available.
func RolledOut(f Facts) bool {
	wanted := reserve.Wanted(f.Deployment)
	return f.Current != nil && f.Class.Left() == 0 && replaced(f) && counts.Settled(f.Current) && counts.Desired(f.Current) == wanted &&
		f.Counted(f.Current) == wanted && counts.Available(f.Current) == wanted
}
