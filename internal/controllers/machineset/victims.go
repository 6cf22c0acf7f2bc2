package machineset

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/preservation"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// victim is a Machine to delete, and why.
type victim struct {
	machine *v1alpha1.Machine
	// cause is why, for programs; reason says it.
	cause, reason string
}

// victims picks the Machines to delete: the surplus in the order of rank, those that
// were named for deletion, and those that failed. None is preserved: a set that has more
// Machines than wanted keeps those until their preservation ends.
func victims(f facts, kept []*v1alpha1.Machine, surplus int) []victim {
	set, inPlace := f.set, updatesInPlace(f.parent)
	for _, machine := range kept {
		if removable(machine, inPlace) && preservation.Active(machine, f.now) && named(machine, set) {
			surplus-- // no other goes in place of the one that was named
		}
	}
	var chosen []victim
	for i, machine := range candidates(f, kept, surplus) {
		switch {
		case machine.Status.CurrentStatus.Phase == v1alpha1.MachineFailed:
			chosen = append(chosen, victim{machine, v1alpha1.CauseMachineFailed, messages.Failed + machine.Status.LastOperation.Description})
		case i < surplus:
			chosen = append(chosen, victim{machine, v1alpha1.CauseSurplus, surplusReason(surplus, set)})
		case named(machine, set):
			chosen = append(chosen, victim{machine, v1alpha1.CauseNamedForDeletion, messages.Named})
		}
	}
	return chosen
}

// candidates are the Machines that may be picked, in the order of rank. To put Machines in order
// takes long, so without a surplus they are only those that go anyway.
func candidates(f facts, kept []*v1alpha1.Machine, surplus int) []*v1alpha1.Machine {
	var some []*v1alpha1.Machine
	inPlace := updatesInPlace(f.parent)
	for _, machine := range kept {
		goes := surplus > 0 || machine.Status.CurrentStatus.Phase == v1alpha1.MachineFailed || named(machine, f.set)
		if goes && removable(machine, inPlace) && !preservation.Active(machine, f.now) {
			some = append(some, machine)
		}
	}
	slices.SortStableFunc(some, rank)
	return some
}

// removable reports whether a Machine may be picked at all: it is not on its way out, and did not
// just come from another set of its deployment, updated in place. Where nothing is updated in
// place, the label that says so is a leftover, which nobody would ever take off.
func removable(machine *v1alpha1.Machine, inPlace bool) bool {
	came := inPlace && machine.Labels[v1alpha1.LabelKeyNodeUpdateResult] == v1alpha1.LabelValueNodeUpdateSuccessful
	return active(machine) && !came
}

// updatesInPlace reports whether a deployment does so; nil is none.
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

// rank orders Machines for deletion, those to go first in front: the lower priority; what
// was marked for deletion, the earlier first; the worse phase; the older.
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

// compareBool puts false in front of true.
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

// phaseRank: phases that are not listed come first, as in MCM.
func phaseRank(machine *v1alpha1.Machine) int {
	order := []v1alpha1.MachinePhase{
		v1alpha1.MachineTerminating, v1alpha1.MachineFailed, v1alpha1.MachineCrashLoopBackOff, v1alpha1.MachineUnknown,
		v1alpha1.MachinePending, v1alpha1.MachineAvailable, v1alpha1.MachineRunning,
	}
	return max(0, slices.Index(order, machine.Status.CurrentStatus.Phase))
}
