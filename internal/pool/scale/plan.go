package scale

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/preservation"
	"github.com/millwright-dev/millwright/internal/pool/counts"
	"github.com/millwright-dev/millwright/internal/pool/reserve"
	"github.com/millwright-dev/millwright/internal/pool/restore"
	"github.com/millwright-dev/millwright/internal/reconcile/cascade/orphaning"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// Burst is the maximum number of Machines that one pass creates, deletes or updates.
const Burst = 100

// Action is the kind of an operation.
type Action string

const (
	// Adopt makes the set the controller of a Machine.
	Adopt Action = "adopt"
	// Release removes the set from the owners of a Machine.
	Release Action = "release"
	// Update copies changes of the template to a Machine.
	Update Action = "update"
	// Freeze sets the label that prevents the set from creating Machines.
	Freeze Action = "freeze"
	// Unfreeze removes that label.
	Unfreeze Action = "unfreeze"
	// Create creates Machines.
	Create Action = "create"
	// Delete deletes a Machine.
	Delete Action = "delete"
	// Preserve annotates a failed Machine so that it is preserved.
	Preserve Action = "preserve"
	// GiveUp removes that annotation.
	GiveUp Action = "give up"
	// EndRestore records that a restored set no longer waits for its Machines.
	EndRestore Action = "end restore"
)

// Operation is one change, with its reason.
type Operation struct {
	Action Action
	// Machine is the Machine to adopt, release, update, delete or preserve. It is nil for other actions.
	Machine *v1alpha1.Machine
	// Count is how many Machines to create, how many exist when the set is frozen, or how many were not restored.
	Count int
	// Excess is how many of the created Machines are in the reserve of the set. They are created last.
	Excess int
	// Cause is why a Machine is deleted, as in v1alpha1.CauseMachineFailed. It is empty for other actions.
	Cause string
	// Reason is a clause for events and logs.
	Reason string
}

// Plan returns the operations that bring the set closer to its spec.
func Plan(f Facts) []Operation {
	switch {
	case orphaning.Pending(f.Set): // the garbage collector has not released the Machines yet
		return nil
	case f.Orphaned: // the garbage collector may have missed these Machines
		return each(f.Owned, Operation{Action: Release, Reason: "the machine set is deleted without its machines"})
	case !f.Set.DeletionTimestamp.IsZero():
		active := slices.DeleteFunc(slices.Clone(f.Owned), func(machine *v1alpha1.Machine) bool { return !counts.Active(machine) })
		return oneBurst(each(active, Operation{Action: Delete, Cause: v1alpha1.CauseOwnerDeleted, Reason: messages.SetDeleted}))
	}
	kept, operations := adoptAndRelease(f)
	operations = append(operations, update(f)...)
	if !f.Current {
		return operations
	}
	if restore.Waits(f.Set) {
		return append(operations, planRestored(f, kept)...)
	}
	count, preserved := 0, 0
	for _, machine := range kept {
		if !counts.Active(machine) {
			continue
		}
		count++
		if preservation.Active(machine, f.Now) {
			preserved++
		}
	}
	operations = append(operations, freezeOrUnfreeze(f, count-preserved)...)
	desired := int(f.Set.Spec.Replicas)
	preservations, spared := autoPreserve(f, kept, count-desired)
	operations, f.spared = append(operations, preservations...), spared
	if count < desired && !f.Now.Before(f.NotBefore) {
		return append(operations, scaleUp(f, kept, count, desired)...)
	}
	return append(operations, scaleDown(f, kept, count-desired)...)
}

// adoptAndRelease adopts and releases Machines, and returns the Machines that the set has afterwards.
func adoptAndRelease(f Facts) ([]*v1alpha1.Machine, []Operation) {
	var kept []*v1alpha1.Machine
	var operations []Operation
	selector := Selector(f.Set.Spec.Selector)
	for _, machine := range f.Owned {
		if selector.Matches(labels.Set(machine.Labels)) {
			kept = append(kept, machine)
		} else {
			operations = append(operations, Operation{Action: Release, Machine: machine, Reason: "its labels no longer match the selector"})
		}
	}
	for _, machine := range f.Unowned {
		if counts.Active(machine) {
			kept = append(kept, machine)
			operations = append(operations, Operation{Action: Adopt, Machine: machine, Reason: "it has no owner and its labels match the selector"})
		}
	}
	return kept, byName(operations)
}

// byName sorts operations, because the first failure is written to the status and must not change between
// passes.
func byName(operations []Operation) []Operation {
	slices.SortFunc(operations, func(a, b Operation) int { return cmp.Compare(a.Machine.Name, b.Machine.Name) })
	return operations
}

// update copies changes of the template to a burst of Machines. The events of these changes start the next
// pass.
func update(f Facts) []Operation {
	var operations []Operation
	for _, outdated := range f.Outdated {
		operations = append(operations, Operation{Action: Update, Machine: outdated.Machine, Reason: whyUpdate(outdated)})
	}
	operations = byName(operations)
	slices.SortStableFunc(operations, func(a, b Operation) int { // Pods may be waiting for Machines that leave the reserve
		return cmp.Compare(reserve.Rank(a.Machine), reserve.Rank(b.Machine))
	})
	return oneBurst(operations)
}

func whyUpdate(outdated Outdated) string {
	switch is := reserve.MarkOf(&outdated.Machine.Spec); {
	case is == outdated.Mark:
		return "the machine set has a different " + strings.Join(outdated.Differences, ", ")
	case outdated.Mark == reserve.None:
		return "it is needed for pods and is no longer in excess"
	case is == reserve.None:
		return "it is in excess of the desired replicas"
	}
	return "the taints of excess machines changed"
}

// scaleUp creates missing Machines. A set that is being unfrozen does so in its next pass.
func scaleUp(f Facts, kept []*v1alpha1.Machine, count, desired int) []Operation {
	_, disabled := f.Set.Labels[v1alpha1.LabelKeyMachineSetScaleUpDisabled]
	if disabled || Frozen(f.Set) {
		return nil
	}
	op := Operation{Action: Create, Count: min(desired-count, Burst), Reason: fmt.Sprintf("%d of %d machines exist", count, desired)}
	op.Excess = f.Reserve.NewMembers(f.Set, kept, op.Count)
	return []Operation{op}
}

// each returns a copy of an operation for each Machine.
func each(machines []*v1alpha1.Machine, op Operation) []Operation {
	var operations []Operation
	for _, machine := range machines {
		op.Machine = machine
		operations = append(operations, op)
	}
	return byName(operations)
}

func oneBurst(operations []Operation) []Operation { return operations[:min(len(operations), Burst)] }

// Overshoot configures when a set is frozen. A frozen set creates no Machines.
type Overshoot struct {
	// Up is how many Machines beyond its limit freeze a set. The limit is the desired size of its deployment
	// plus the surge. For a set without a deployment, it is twice the set's replicas.
	Up int32
	// Down is how many Machines below the freezing number unfreeze a set. It counts as at least 1. A set without
	// Machines is always unfrozen.
	Down int32
}

// Frozen reports whether a set must not create Machines.
func Frozen(set *v1alpha1.MachineSet) bool { return set.Labels[v1alpha1.LabelKeyFreeze] == "True" }

// freezeOrUnfreeze freezes a set that has far too many Machines. It unfreezes the set when it has fewer, or
// when an annotation requests it.
//
// Machines that are being deleted or preserved do not count. A set is not frozen because its deployment has
// fewer replicas than the set, because replacements, rollouts and delayed caches cause that in normal
// operation. A set that is scaled down by many replicas is frozen until the surplus is being deleted. MCM does
// the same, and its integration tests wait for the two events.
func freezeOrUnfreeze(f Facts, count int) []Operation {
	if _, asked := f.Set.Annotations[v1alpha1.AnnotationKeyUnfreeze]; asked {
		return []Operation{{Action: Unfreeze, Reason: "annotation " + v1alpha1.AnnotationKeyUnfreeze + " requests it"}}
	}
	if f.Overshoot == nil {
		return nil
	}
	high, exceeded := f.Overshoot.Exceeded(f.Set, f.Parent, count)
	low := max(0, high-max(1, int(f.Overshoot.Down)))
	reported := slices.ContainsFunc(f.Set.Status.Conditions, func(c v1alpha1.MachineSetCondition) bool { return c.Type == v1alpha1.MachineSetFrozen })
	switch {
	case exceeded && !Frozen(f.Set):
		return []Operation{{Action: Freeze, Count: count, Reason: TooMany(count, high)}}
	case count <= low && (Frozen(f.Set) || reported):
		return []Operation{{Action: Unfreeze, Reason: fmt.Sprintf("%d machines exist, at most the unfreeze limit of %d", count, low)}}
	}
	return nil
}

// TooMany returns the reason why a set is frozen.
func TooMany(count, limit int) string {
	return fmt.Sprintf("%d machines exist, at least the freeze limit of %d", count, limit)
}

// Exceeded returns how many Machines freeze a set, and whether it has that many. The deployment is nil if the
// set has none.
func (o *Overshoot) Exceeded(set *v1alpha1.MachineSet, parent *v1alpha1.MachineDeployment, count int) (int, bool) {
	high := max(1, limit(set, parent)+int(o.Up))
	return high, count >= high
}

// limit returns the maximum number of Machines of a set. The cache may show the deployment later than the set.
func limit(set *v1alpha1.MachineSet, parent *v1alpha1.MachineDeployment) int {
	if parent == nil {
		return 2 * int(set.Spec.Replicas)
	}
	return int(max(reserve.Desired(parent), set.Spec.Replicas)) + surge(parent)
}

// surge returns how many Machines beyond its replicas a deployment may have during a rollout. An invalid value
// counts as 0, because the deployment controller reports it.
func surge(deployment *v1alpha1.MachineDeployment) int {
	var value *intstr.IntOrString
	switch strategy := deployment.Spec.Strategy; {
	case strategy.Type == v1alpha1.RecreateMachineDeploymentStrategyType:
		return 0
	case strategy.Type == v1alpha1.InPlaceUpdateMachineDeploymentStrategyType && strategy.InPlaceUpdate != nil:
		value = strategy.InPlaceUpdate.MaxSurge
	case strategy.Type != v1alpha1.InPlaceUpdateMachineDeploymentStrategyType && strategy.RollingUpdate != nil:
		value = strategy.RollingUpdate.MaxSurge
	}
	value = intstr.ValueOrDefault(value, intstr.FromInt32(1))
	number, _ := intstr.GetScaledValueFromIntOrPercent(value, int(reserve.Desired(deployment)), true) // 0 if invalid
	return max(0, number)
}
