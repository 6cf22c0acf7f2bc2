package machineset

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// victim is a Machine to delete, and why.
type victim struct {
	machine *v1alpha1.Machine
	reason  string
}

// victims picks the Machines to delete: the surplus in the order of rank, those that
// were named for deletion, and those that failed and are not preserved.
func victims(kept []*v1alpha1.Machine, surplus int, set *v1alpha1.MachineSet, now time.Time) []victim {
	var candidates []*v1alpha1.Machine
	for _, machine := range kept {
		updated := machine.Labels[v1alpha1.LabelKeyNodeUpdateResult] == v1alpha1.LabelValueNodeUpdateSuccessful
		if active(machine) && !updated {
			candidates = append(candidates, machine)
		}
	}
	slices.SortStableFunc(candidates, func(a, b *v1alpha1.Machine) int { return rank(a, b, now) })

	var chosen []victim
	for i, machine := range candidates {
		switch {
		case i < surplus:
			chosen = append(chosen, victim{machine, surplusReason(surplus, set)})
		case named(machine, set):
			chosen = append(chosen, victim{machine, "it was named for deletion"})
		case machine.Status.CurrentStatus.Phase == v1alpha1.MachineFailed && !preserved(machine, now):
			chosen = append(chosen, victim{machine, "it failed: " + machine.Status.LastOperation.Description})
		}
	}
	return chosen
}

func surplusReason(surplus int, set *v1alpha1.MachineSet) string {
	if surplus == 1 {
		return fmt.Sprintf("1 machine more than the %d wanted exists", set.Spec.Replicas)
	}
	return fmt.Sprintf("%d machines more than the %d wanted exist", surplus, set.Spec.Replicas)
}

// named tells whether an autoscaler named the Machine for deletion, in the same write as
// or before the set's last change of replicas.
func named(machine *v1alpha1.Machine, set *v1alpha1.MachineSet) bool {
	if priority(machine) != 1 {
		return false
	}
	marked, err := time.Parse(time.RFC3339, machine.Annotations[v1alpha1.AnnotationKeyMarkedForDeletionTime])
	if err != nil {
		return false
	}
	changed, err := time.Parse(time.RFC3339, set.Annotations[v1alpha1.AnnotationKeyLastReplicaChange])
	return err == nil && !marked.After(changed)
}

// rank orders Machines for deletion, those to go first in front: what is not preserved;
// the lower priority; what was marked for deletion, the earlier first; the worse phase;
// the older.
func rank(a, b *v1alpha1.Machine, now time.Time) int {
	return cmp.Or(
		rankPreserved(a, b, now),
		cmp.Compare(priority(a), priority(b)),
		rankMarked(a, b),
		cmp.Compare(phaseRank(a), phaseRank(b)),
		a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
		cmp.Compare(a.Name, b.Name),
	)
}

// rankPreserved: of two that are preserved, the one that nobody asked for goes first,
// then the one that is preserved for the shorter time.
func rankPreserved(a, b *v1alpha1.Machine, now time.Time) int {
	keptA, keptB := preserved(a, now), preserved(b, now)
	if !keptA || !keptB {
		return compareBool(keptA, keptB)
	}
	byUser := func(m *v1alpha1.Machine) bool {
		return m.Annotations[v1alpha1.AnnotationKeyPreserve] != "auto-preserved"
	}
	return cmp.Or(compareBool(byUser(a), byUser(b)), expiry(a).Compare(expiry(b)))
}

func expiry(machine *v1alpha1.Machine) time.Time {
	if at := machine.Status.CurrentStatus.PreserveExpiryTime; at != nil {
		return at.Time
	}
	return time.Time{}
}

func rankMarked(a, b *v1alpha1.Machine) int {
	timeA, errA := time.Parse(time.RFC3339, a.Annotations[v1alpha1.AnnotationKeyMarkedForDeletionTime])
	timeB, errB := time.Parse(time.RFC3339, b.Annotations[v1alpha1.AnnotationKeyMarkedForDeletionTime])
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
