package rollout

import (
	"fmt"
	"slices"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/counts"
	"github.com/millwright-dev/millwright/internal/pool/revision"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// planRolling creates new Machines as far as the surge allows, and removes old ones as long as enough remain
// available. It waits until all sets are settled, so that all Machines are counted.
//
// Both are planned at the same time: a Machine that does not exist yet allows no removal, and a removed Machine
// frees capacity only when it is gone. But a set that failed may have created Machines that it does not count.
// It is scaled down first, and others are created only after it has reported again.
func planRolling(r *Rollout) []Operation {
	if !r.settled {
		return nil
	}
	if r.resized && r.excess > 0 {
		return planScaleDown(r)
	}
	smaller := shrink(r)
	if slices.ContainsFunc(smaller, func(op Operation) bool { return !counts.Observed(op.Set) }) {
		return smaller
	}
	return append(grow(r), smaller...)
}

// grow gives the current set as many Machines as the limits allow, up to the deployment's replicas.
func grow(r *Rollout) []Operation {
	why := fmt.Sprintf("at most %s allowed during the rollout, currently %d", messages.Machines(r.Desired+r.surge), counts.Total(r.sets, r.Counted))
	if r.Current == nil {
		return []Operation{{Action: Create, Replicas: min(r.Desired, r.creatable), Reason: whyNew(r) + ": " + why}}
	}
	replicas := r.Current.Spec.Replicas
	switch {
	case replicas > r.Desired:
		return []Operation{scaleTo(r.Current, r.Desired, desired(r))}
	case replicas == r.Desired || r.creatable == 0:
		return nil
	default:
		return []Operation{scaleTo(r.Current, min(r.Desired, replicas+r.creatable), why)}
	}
}

// whyNew returns why no set of the template exists.
func whyNew(r *Rollout) string {
	if slices.ContainsFunc(r.Old, func(set *v1alpha1.MachineSet) bool {
		return revision.Same(&set.Spec.Template, &r.Deployment.Spec.Template)
	}) {
		return "the machine set of this template is being deleted" // otherwise it would be the current one
	}
	return "the template changed"
}

// shrink removes Machines of old sets: first unavailable ones, then others as long as enough remain available.
// In the end, the sets have no replicas. Preserved Machines stay.
//
// There may be fewer Machines than desired, but enough of them are available even if no other becomes
// available.
func shrink(r *Rollout) []Operation {
	var missing int32
	if r.Current != nil {
		missing = counts.Desired(r.Current) - counts.Available(r.Current)
	}
	removable := counts.Clamp(counts.Total(r.sets, counts.Desired) - r.minAvailable - int64(missing))
	spare := counts.Clamp(counts.Total(r.sets, counts.Available) - r.minAvailable)

	taken := make([]int32, len(r.Old))
	reasons := make([]string, len(r.Old))
	for i, set := range r.Old {
		taken[i] = min(counts.Desired(set)-counts.Available(set)-counts.PreservedFailed(set), removable)
		removable -= taken[i]
		if taken[i] > 0 {
			reasons[i] = fmt.Sprintf("%d of its machines %s unavailable", taken[i], messages.Are(taken[i]))
		}
	}
	for i, set := range r.Old {
		useful := min(counts.Available(set), removable, spare)
		removable, spare = removable-useful, spare-useful
		taken[i] += useful
		if useful > 0 {
			available, minAvailable := counts.Total(r.sets, counts.Available), max(0, r.minAvailable)
			reasons[i] = join(reasons[i], fmt.Sprintf("%s can be removed (%d available, at least %d required)", messages.Machines(useful), available, minAvailable))
		}
		if onlyPreservedLeft(r) {
			taken[i] = counts.Desired(set)
			reasons[i] = join(reasons[i], "only preserved machines are left, which are kept")
		}
	}
	var operations []Operation
	for i, set := range r.Old {
		if taken[i] > 0 {
			operations = append(operations, scaleTo(set, counts.Desired(set)-taken[i], reasons[i]))
		}
	}
	return operations
}

// onlyPreservedLeft reports whether all Machines of the old sets are preserved, and there are any.
func onlyPreservedLeft(r *Rollout) bool {
	rest := counts.Total(r.Old, counts.PreservedFailed)
	return r.Current != nil && rest > 0 && counts.Total(r.Old, counts.Desired) == rest && counts.Available(r.Current) == counts.Desired(r.Current)
}

func join(a, b string) string {
	if a == "" {
		return b
	}
	return a + ", and " + b
}
