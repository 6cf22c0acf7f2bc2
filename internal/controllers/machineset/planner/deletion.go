package planner

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/preservation"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// scaleDown deletes the surplus in the order of rank, Machines that an autoscaler named, and those
// that failed. There may also be too few, while the set creates none. Preserved Machines stay until
// their preservation ends.
func scaleDown(f Facts, kept []*v1alpha1.Machine, surplus int) []Operation {
	inPlace := updatesInPlace(f.Parent)
	for _, machine := range kept {
		if deletable(machine, inPlace) && preservation.Active(machine, f.Now) && named(machine, f.Set) {
			surplus-- // no other goes in place of the one that was named
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
		case named(machine, f.Set):
			op.Cause, op.Reason = v1alpha1.CauseNamedForDeletion, messages.Named
		default:
			continue
		}
		operations = append(operations, op)
	}
	return operations
}

// deletionCandidates returns the Machines that may be deleted, in the order of rank. Sorting takes
// long, so without a surplus they are only those that are deleted in any case.
func deletionCandidates(f Facts, kept []*v1alpha1.Machine, surplus int) []*v1alpha1.Machine {
	var some []*v1alpha1.Machine
	inPlace := updatesInPlace(f.Parent)
	for _, machine := range kept {
		goes := surplus > 0 || machine.Status.CurrentStatus.Phase == v1alpha1.MachineFailed || named(machine, f.Set)
		if goes && deletable(machine, inPlace) && !preservation.Active(machine, f.Now) {
			some = append(some, machine)
		}
	}
	slices.SortStableFunc(some, rank)
	return some
}

// deletable reports whether a Machine may be deleted at all: it is not being deleted, and did not
// just come from another set of its deployment, updated in place. Where nothing is updated in
// place, the label that says so is a leftover that nobody removes.
func deletable(machine *v1alpha1.Machine, inPlace bool) bool {
	came := inPlace && machine.Labels[v1alpha1.LabelKeyNodeUpdateResult] == v1alpha1.LabelValueNodeUpdateSuccessful
	return Active(machine) && !came
}

// updatesInPlace reports whether a deployment updates its Machines in place. It may be nil.
func updatesInPlace(deployment *v1alpha1.MachineDeployment) bool {
	return deployment != nil && deployment.Spec.Strategy.Type == v1alpha1.InPlaceUpdateMachineDeploymentStrategyType
}

func surplusReason(surplus int, set *v1alpha1.MachineSet) string {
	if surplus == 1 {
		return fmt.Sprintf("1 machine more than the %d wanted exists", set.Spec.Replicas)
	}
	return fmt.Sprintf("%d machines more than the %d wanted exist", surplus, set.Spec.Replicas)
}

// named reports whether an autoscaler named the Machine for deletion, in the same write as
// or before the set's last change of replicas.
func named(machine *v1alpha1.Machine, set *v1alpha1.MachineSet) bool {
	mark := machine.Annotations[v1alpha1.AnnotationKeyMarkedForDeletionTime]
	if mark == "" || priority(machine) != 1 {
		return false
	}
	marked, err := time.Parse(time.RFC3339, mark)
	if err != nil {
		return false
	}
	changed, err := time.Parse(time.RFC3339, set.Annotations[v1alpha1.AnnotationKeyLastReplicaChange])
	return err == nil && !marked.After(changed)
}

// rank orders Machines for deletion: the lower priority first, then those that were marked for
// deletion, the earlier first, then the worse phase, then the older.
func rank(a, b *v1alpha1.Machine) int {
	return cmp.Or(
		cmp.Compare(priority(a), priority(b)),
		rankMarked(a, b),
		cmp.Compare(phaseRank(a), phaseRank(b)),
		a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
		cmp.Compare(a.Name, b.Name),
	)
}

func rankMarked(a, b *v1alpha1.Machine) int {
	markA, markB := a.Annotations[v1alpha1.AnnotationKeyMarkedForDeletionTime], b.Annotations[v1alpha1.AnnotationKeyMarkedForDeletionTime]
	if markA == "" && markB == "" {
		return 0 // nearly always, and parsing nothing takes its time
	}
	timeA, errA := time.Parse(time.RFC3339, markA)
	timeB, errB := time.Parse(time.RFC3339, markB)
	if errA != nil || errB != nil {
		return compareBool(errA != nil, errB != nil)
	}
	return timeA.Compare(timeB)
}

// compareBool orders false before true.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	default:
		return 1
	}
}

// phaseRank is the rank of a Machine by its phase. Unlisted phases come first, as in MCM.
func phaseRank(machine *v1alpha1.Machine) int {
	order := []v1alpha1.MachinePhase{
		v1alpha1.MachineTerminating, v1alpha1.MachineFailed, v1alpha1.MachineCrashLoopBackOff, v1alpha1.MachineUnknown,
		v1alpha1.MachinePending, v1alpha1.MachineAvailable, v1alpha1.MachineRunning,
	}
	return max(0, slices.Index(order, machine.Status.CurrentStatus.Phase))
}
