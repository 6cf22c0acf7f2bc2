package scale

import (
	"cmp"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/preservation"
	"github.com/millwright-dev/millwright/internal/pool/counts"
)

// autoPreserve preserves failed Machines for which users made no decision, the newest first, as long as the
// set's maximum allows. If too many are preserved, it gives up those that expire first. It also returns the Machines that
// this pass must not delete as a result. A set that has too many Machines preserves no more, because failed
// Machines are deleted first.
func autoPreserve(f Facts, kept []*v1alpha1.Machine, surplus int) ([]Operation, map[types.UID]bool) {
	places := int(max(0, f.Set.Spec.AutoPreserveFailedMachineMax))
	var preserved, undecided []*v1alpha1.Machine
	for _, machine := range kept {
		switch {
		case !counts.Active(machine):
		case machine.Annotations[v1alpha1.AnnotationKeyPreserve] == preservation.AutoPreserved:
			preserved = append(preserved, machine)
		case places > 0 && surplus <= 0 && mayPreserve(machine):
			undecided = append(undecided, machine)
		}
	}
	free := places - len(preserved)
	switch {
	case !f.PreservationsCurrent: // some may already be preserved
		return nil, spare(undecided)
	case free < 0:
		slices.SortStableFunc(preserved, byExpiry)
		return each(preserved[:-free], Operation{Action: GiveUp, Reason: fmt.Sprintf("the machine set preserves at most %d failed machines automatically", places)}), nil
	}
	slices.SortStableFunc(undecided, byAge)
	slices.Reverse(undecided)
	undecided = undecided[:min(free, len(undecided))]
	return each(undecided, Operation{Action: Preserve, Reason: fmt.Sprintf("it failed, and the machine set preserves %d of at most %d failed machines", len(preserved), places)}), spare(undecided)
}

// mayPreserve reports whether a Machine failed, was not preserved before, and has no annotation about
// preservation, neither itself nor on its node.
func mayPreserve(machine *v1alpha1.Machine) bool {
	status := machine.Status.CurrentStatus
	return status.Phase == v1alpha1.MachineFailed && status.PreserveExpiryTime == nil &&
		!preservation.Valid(machine.Annotations[v1alpha1.AnnotationKeyPreserve]) &&
		!preservation.Valid(machine.Annotations[v1alpha1.AnnotationKeyLastAppliedPreserve])
}

// byExpiry sorts by the end of the preservation, then by age. A preservation that has not begun expires last.
func byExpiry(a, b *v1alpha1.Machine) int {
	expires, other := a.Status.CurrentStatus.PreserveExpiryTime, b.Status.CurrentStatus.PreserveExpiryTime
	switch {
	case expires == nil && other == nil:
		return byAge(a, b)
	case expires == nil:
		return 1
	case other == nil:
		return -1
	}
	return cmp.Or(expires.Compare(other.Time), byAge(a, b))
}

func byAge(a, b *v1alpha1.Machine) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(b.Name, a.Name))
}

func spare(machines []*v1alpha1.Machine) map[types.UID]bool {
	spared := make(map[types.UID]bool, len(machines))
	for _, machine := range machines {
		spared[machine.UID] = true
	}
	return spared
}
