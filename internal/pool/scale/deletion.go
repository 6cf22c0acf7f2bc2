package scale

import (
	"fmt"
	"slices"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/preservation"
	"github.com/millwright-dev/millwright/internal/pool/counts"
	"github.com/millwright-dev/millwright/internal/pool/deletion"
	"github.com/millwright-dev/millwright/internal/pool/inplaceupdate"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// scaleDown deletes surplus Machines by rank. It also deletes Machines that an autoscaler named and Failed
// Machines, even if there are too few Machines. It does not delete preserved Machines.
func scaleDown(f Facts, kept []*v1alpha1.Machine, surplus int) []Operation {
	inPlace := updatesInPlace(f.Parent)
	for _, machine := range kept {
		switch {
		case inPlace && counts.Active(machine) && inplaceupdate.Moved(machine):
			surplus-- // the replicas do not count it yet, so no other Machine must be deleted instead
		case deletable(machine, inPlace) && preservation.Active(machine, f.Now) && deletion.Named(machine, f.Set):
			surplus-- // no other Machine is deleted instead of the named one
		}
	}
	var operations []Operation
	for i, machine := range deletionCandidates(f, kept, surplus) {
		op := Operation{Action: Delete, Machine: machine}
		switch {
		case len(operations) == Burst:
			return operations
		case machine.Status.CurrentStatus.Phase == v1alpha1.MachineFailed:
			op.Cause, op.Reason = v1alpha1.CauseMachineFailed, messages.Failed+machine.Status.LastOperation.Description
		case i < surplus:
			op.Cause, op.Reason = v1alpha1.CauseSurplus, surplusReason(surplus, f.Set)
		case deletion.Named(machine, f.Set):
			op.Cause, op.Reason = v1alpha1.CauseNamedForDeletion, messages.Named
		default:
			continue
		}
		operations = append(operations, op)
	}
	return operations
}

// deletionCandidates returns the Machines that may be deleted, by rank. Without a surplus, it returns only
// Machines that are deleted in any case, because sorting all is slow.
func deletionCandidates(f Facts, kept []*v1alpha1.Machine, surplus int) []*v1alpha1.Machine {
	var some []*v1alpha1.Machine
	inPlace := updatesInPlace(f.Parent)
	for _, machine := range kept {
		goes := surplus > 0 || machine.Status.CurrentStatus.Phase == v1alpha1.MachineFailed || deletion.Named(machine, f.Set)
		if goes && deletable(machine, inPlace) && !preservation.Active(machine, f.Now) && !f.spared[machine.UID] {
			some = append(some, machine)
		}
	}
	old := Replaced(f)
	slices.SortStableFunc(some, func(a, b *v1alpha1.Machine) int { return deletion.Compare(a, b, old) })
	return some
}

// deletable reports whether a Machine may be deleted: it is not being deleted, and was not just moved here by
// an in-place update. If the strategy has no in-place updates, the label is ignored.
func deletable(machine *v1alpha1.Machine, inPlace bool) bool {
	return counts.Active(machine) && !(inPlace && inplaceupdate.Moved(machine))
}

func updatesInPlace(deployment *v1alpha1.MachineDeployment) bool {
	return deployment != nil && deployment.Spec.Strategy.Type == v1alpha1.InPlaceUpdateMachineDeploymentStrategyType
}

// Replaced reports whether the set is an old set of a deployment that updates its Machines in place.
func Replaced(f Facts) bool {
	return updatesInPlace(f.Parent) && f.Set.Annotations[v1alpha1.AnnotationKeyRevision] != f.Parent.Annotations[v1alpha1.AnnotationKeyRevision]
}

func surplusReason(surplus int, set *v1alpha1.MachineSet) string {
	if surplus == 1 {
		return fmt.Sprintf("1 surplus machine, %d desired", set.Spec.Replicas)
	}
	return fmt.Sprintf("%d surplus machines, %d desired", surplus, set.Spec.Replicas)
}
