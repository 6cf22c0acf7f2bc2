// Package deletion orders the Machines of a MachineSet for deletion.
package deletion

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/scarcity"
	"github.com/millwright-dev/millwright/internal/pool/inplaceupdate"
	"github.com/millwright-dev/millwright/internal/pool/reserve"
)

// Priorities of Machines, as in their annotation. Machines with a lower priority are deleted first.
const (
	// First is the priority of Machines that are deleted before others: Machines that were named for deletion,
	// and Machines that a live update cannot update.
	First = "1"
	// Normal is the default.
	Normal = "3"

	// first and normal are First and Normal as numbers.
	first, normal = 1, 3
)

// priority returns the annotated priority of a Machine.
func priority(machine *v1alpha1.Machine) int {
	if value, err := strconv.Atoi(machine.Annotations[v1alpha1.AnnotationKeyMachinePriority]); err == nil {
		return value
	}
	return normal
}

// IsFirst reports whether a Machine has the priority First.
func IsFirst(machine *v1alpha1.Machine) bool {
	return machine.Annotations[v1alpha1.AnnotationKeyMachinePriority] == First
}

// Prefer gives a Machine the priority First.
func Prefer(machine *v1alpha1.Machine) {
	metav1.SetMetaDataAnnotation(&machine.ObjectMeta, v1alpha1.AnnotationKeyMachinePriority, First)
}

// Mark marks a Machine as named for deletion at the given time, in RFC 3339 format.
func Mark(machine *v1alpha1.Machine, at string) {
	Prefer(machine)
	metav1.SetMetaDataAnnotation(&machine.ObjectMeta, v1alpha1.AnnotationKeyMarkedForDeletionTime, at)
}

// Marked returns the time when a Machine was marked as named for deletion, as written in its annotation. It
// returns an empty string if the Machine is not marked.
func Marked(machine *v1alpha1.Machine) string {
	if !IsFirst(machine) {
		return ""
	}
	return machine.Annotations[v1alpha1.AnnotationKeyMarkedForDeletionTime]
}

// Named reports whether an autoscaler named a Machine for deletion no later than it last changed the replicas
// of the set's deployment. This is MCM's rule.
func Named(machine *v1alpha1.Machine, set *v1alpha1.MachineSet) bool {
	marked := markedAt(machine)
	if marked.Equal(never) || priority(machine) != first {
		return false
	}
	changed, err := time.Parse(time.RFC3339, set.Annotations[v1alpha1.AnnotationKeyLastReplicaChange])
	return err == nil && !marked.After(changed)
}

// never is later than all times in RFC 3339 format.
var never = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)

// markedAt returns when a Machine was marked for deletion, regardless of its priority. It returns never if it
// was not.
func markedAt(machine *v1alpha1.Machine) time.Time {
	mark := machine.Annotations[v1alpha1.AnnotationKeyMarkedForDeletionTime]
	if mark == "" {
		return never // the common case, without parsing
	}
	if at, err := time.Parse(time.RFC3339, mark); err == nil {
		return at
	}
	return never
}

// Compare orders Machines for deletion: by lower priority, earlier mark, no VM, worse phase, excess Machines first,
// later class choice first, and age. Replaced reports whether an in-place update replaces their set.
func Compare(a, b *v1alpha1.Machine, replaced bool) int {
	return cmp.Or(
		cmp.Compare(priority(a), priority(b)),
		markedAt(a).Compare(markedAt(b)),
		cmp.Compare(instanceRank(a, replaced), instanceRank(b, replaced)),
		cmp.Compare(phaseRank(a, replaced), phaseRank(b, replaced)),
		cmp.Compare(reserve.Rank(a), reserve.Rank(b)),
		cmp.Compare(scarcity.Rank(b), scarcity.Rank(a)),
		a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
		cmp.Compare(a.Name, b.Name),
	)
}

// instanceRank ranks Machines with a VM after those without one, which have nothing to lose. Machines that their set
// deletes in any case, and unlisted phases, come first.
func instanceRank(machine *v1alpha1.Machine, replaced bool) int {
	switch {
	case phaseRank(machine, replaced) <= slices.Index(order, v1alpha1.MachineFailed):
		return 0
	case machine.Spec.ProviderID == "":
		return 1
	}
	return 2
}

// order lists the phases in the order in which Machines are deleted.
var order = []v1alpha1.MachinePhase{
	v1alpha1.MachineTerminating, v1alpha1.MachineFailed, v1alpha1.MachineCrashLoopBackOff, v1alpha1.MachineUnknown,
	v1alpha1.MachinePending, v1alpha1.MachineAvailable, restored, v1alpha1.MachineRunning,
}

// restored stands for the phase of Machines that are Restored.
const restored v1alpha1.MachinePhase = "restored"

// Restored reports whether a Machine has a VM, but no phase: it was restored from a backup, which does not contain the
// status, and its VM is likely to be in use. A new Machine is in this state, too, until its first status is written.
func Restored(machine *v1alpha1.Machine) bool {
	return machine.Status.CurrentStatus.Phase == "" && machine.Spec.ProviderID != ""
}

// phaseRank returns the rank of a Machine by its phase. Unlisted phases come first, as in MCM, except for restored
// Machines, which come just before Running ones. A Machine that is being updated in place comes last, and so does an updated
// Machine of a replaced set that waits to be moved. MCM deletes the former first and treats the latter like others.
func phaseRank(machine *v1alpha1.Machine, replaced bool) int {
	if Restored(machine) {
		return slices.Index(order, restored)
	}
	if inplaceupdate.Updating(machine) || replaced && inplaceupdate.Waits(machine) {
		return len(order)
	}
	return max(0, slices.Index(order, machine.Status.CurrentStatus.Phase))
}
