package rollout

import (
	"fmt"
	"slices"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/counts"
	"github.com/millwright-dev/millwright/internal/pool/revision"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// planRolling creates new Machines as far as the surge allows, and removes old ones as far as enough
// stay available. It waits until all sets are settled, so that all Machines are counted.
//
// Both are planned at the same time: a Machine that does not exist yet allows no removal, and one that
// is removed makes room only when it is gone. But a set that failed may have created Machines that it
// does not count: it is scaled down and reports again before others are created.
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

// grow gives the current set as many Machines as there is room for, at most the deployment's replicas.
func grow(r *Rollout) []Operation {
	why := fmt.Sprintf("%s may exist during the rollout, and %d do", messages.Machines(r.Desired+r.surge), counts.Total(r.sets, r.Counted))
	if r.Current == nil {
		return []Operation{{Action: Create, Replicas: min(r.Desired, r.creatable), Reason: whyNew(r) + ": " + why}}
	}
	replicas := r.Current.Spec.Replicas
	switch {
	case replicas > r.Desired:
		return []Operation{scaleTo(r.Current, r.Desired, wants(r))}
	case replicas == r.Desired || r.creatable == 0:
		return nil
	default:
		return []Operation{scaleTo(r.Current, min(r.Desired, replicas+r.creatable), why)}
	}
}

// whyNew says why there is no set of the template.
func whyNew(r *Rollout) string {
	if slices.ContainsFunc(r.Old, func(set *v1alpha1.MachineSet) bool {
		return revision.Same(&set.Spec.Template, &r.Deployment.Spec.Template)
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
func shrink(r *Rollout) []Operation {
	var missing int32
	if r.Current != nil {
		missing = counts.Desired(r.Current) - counts.Available(r.Current)
	}
	removable := counts.Clamp(counts.Total(r.sets, counts.Desired) - r.least - int64(missing))
	spare := counts.Clamp(counts.Total(r.sets, counts.Available) - r.least)

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
			available, least := counts.Total(r.sets, counts.Available), max(0, r.least)
			reasons[i] = join(reasons[i], fmt.Sprintf("%d can be spared, since %d of all %s available and %d %s to be", useful, available, messages.Are(available), least, messages.Have(least)))
		}
		if onlyPreservedLeft(r) {
			taken[i] = counts.Desired(set)
			reasons[i] = join(reasons[i], "it has none left but those that are preserved, which stay")
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

// onlyPreservedLeft reports whether the old sets have preserved Machines and no others.
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
