package scale

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/preservation"
	"github.com/millwright-dev/millwright/internal/lifecycle/scarcity"
	"github.com/millwright-dev/millwright/internal/pool/inplaceupdate"
	"github.com/millwright-dev/millwright/internal/pool/reserve"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// scaleDown deletes the surplus in the order of rank, Machines that an autoscaler named, and Failed
// ones, also if there are too few Machines. Preserved Machines stay.
func scaleDown(f Facts, kept []*v1alpha1.Machine, surplus int) []Operation {
	inPlace := updatesInPlace(f.Parent)
	for _, machine := range kept {
		switch {
		case inPlace && Active(machine) && inplaceupdate.Moved(machine):
			surplus-- // the replicas do not count it yet, so no other Machine is deleted instead of it
		case deletable(machine, inPlace) && preservation.Active(machine, f.Now) && Named(machine, f.Set):
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
		case Named(machine, f.Set):
			op.Cause, op.Reason = v1alpha1.CauseNamedForDeletion, messages.Named
		default:
			continue
		}
		operations = append(operations, op)
	}
	return operations
}

// deletionCandidates returns the Machines that may be deleted, in the order of rank. Since sorting
// takes long, without a surplus these are only the Machines that are deleted in any case.
func deletionCandidates(f Facts, kept []*v1alpha1.Machine, surplus int) []*v1alpha1.Machine {
	var some []*v1alpha1.Machine
	inPlace := updatesInPlace(f.Parent)
	for _, machine := range kept {
		goes := surplus > 0 || machine.Status.CurrentStatus.Phase == v1alpha1.MachineFailed || Named(machine, f.Set)
		if goes && deletable(machine, inPlace) && !preservation.Active(machine, f.Now) && !f.spared[machine.UID] {
			some = append(some, machine)
		}
	}
	old := Replaced(f)
	slices.SortStableFunc(some, func(a, b *v1alpha1.Machine) int { return rank(a, b, old) })
	return some
}

// deletable reports whether a Machine may be deleted at all: it is not being deleted, and was not just
// moved here from another set by an update in place. Without such updates, the label is a leftover.
func deletable(machine *v1alpha1.Machine, inPlace bool) bool {
	return Active(machine) && !(inPlace && inplaceupdate.Moved(machine))
}

func updatesInPlace(deployment *v1alpha1.MachineDeployment) bool {
	return deployment != nil && deployment.Spec.Strategy.Type == v1alpha1.InPlaceUpdateMachineDeploymentStrategyType
}

// Replaced reports whether a set is an old one of a deployment that updates its Machines in place.
func Replaced(f Facts) bool {
	return updatesInPlace(f.Parent) && f.Set.Annotations[v1alpha1.AnnotationKeyRevision] != f.Parent.Annotations[v1alpha1.AnnotationKeyRevision]
}

func surplusReason(surplus int, set *v1alpha1.MachineSet) string {
	if surplus == 1 {
		return fmt.Sprintf("1 machine more than the %d wanted exists", set.Spec.Replicas)
	}
	return fmt.Sprintf("%d machines more than the %d wanted exist", surplus, set.Spec.Replicas)
}

// Named reports whether an autoscaler named a Machine for deletion no later than it last changed the
// replicas of the set's deployment. The rule is MCM's.
func Named(machine *v1alpha1.Machine, set *v1alpha1.MachineSet) bool {
	marked := markedAt(machine)
	if marked.Equal(never) || priority(machine) != 1 {
		return false
	}
	changed, err := time.Parse(time.RFC3339, set.Annotations[v1alpha1.AnnotationKeyLastReplicaChange])
	return err == nil && !marked.After(changed)
}

// never is later than all times that RFC 3339 can express.
var never = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)

// markedAt returns when a Machine was marked for deletion; never if it was not.
func markedAt(machine *v1alpha1.Machine) time.Time {
	mark := machine.Annotations[v1alpha1.AnnotationKeyMarkedForDeletionTime]
	if mark == "" {
		return never // nearly always, without parsing
	}
	if at, err := time.Parse(time.RFC3339, mark); err == nil {
		return at
	}
	return never
}

// rank orders Machines for deletion: by lower priority, earlier mark, worse phase, those in excess of what
// is for pods, those of a later choice of class, and age. Old is that their
// set is one that an update in place replaces.
func rank(a, b *v1alpha1.Machine, old bool) int {
	return cmp.Or(
		cmp.Compare(priority(a), priority(b)),
		markedAt(a).Compare(markedAt(b)),
		cmp.Compare(phaseRank(a, old), phaseRank(b, old)),
		cmp.Compare(excessRank(a), excessRank(b)),
		cmp.Compare(scarcity.Rank(b), scarcity.Rank(a)),
		a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
		cmp.Compare(a.Name, b.Name),
	)
}

// excessRank is lower for Machines in excess of what is for pods.
func excessRank(machine *v1alpha1.Machine) int {
	if reserve.In(&machine.Spec) {
		return 0
	}
	return 1
}

// phaseRank returns the rank of a Machine by its phase. Unlisted phases come first, as in MCM, but a
// Machine that is being updated in place comes last, and so does one of an old set that was updated and waits to
// be moved: MCM deletes the former before others, the latter like others.
func phaseRank(machine *v1alpha1.Machine, old bool) int {
	order := []v1alpha1.MachinePhase{
		v1alpha1.MachineTerminating, v1alpha1.MachineFailed, v1alpha1.MachineCrashLoopBackOff, v1alpha1.MachineUnknown,
		v1alpha1.MachinePending, v1alpha1.MachineAvailable, v1alpha1.MachineRunning,
	}
	if inplaceupdate.Updating(machine) || old && inplaceupdate.Waits(machine) {
		return len(order)
	}
	return max(0, slices.Index(order, machine.Status.CurrentStatus.Phase))
}
