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
	"github.com/millwright-dev/millwright/internal/reconcile/cascade/orphaning"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// Burst is how many Machines one pass creates, deletes or updates at most.
const Burst = 100

// Action is what an operation does.
type Action string

const (
	// Adopt makes the set the controller of a Machine.
	Adopt Action = "adopt"
	// Release removes the set from the owners of a Machine.
	Release Action = "release"
	// Update brings changes of the template into a Machine.
	Update Action = "update"
	// Freeze sets the label that keeps the set from creating Machines.
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
)

// Operation is one thing to do, and why.
type Operation struct {
	Action Action
	// Machine is what is adopted, released, updated or deleted; nil otherwise.
	Machine *v1alpha1.Machine
	// Count is how many Machines are created, or how many exist that freeze the set.
	Count int
	// Excess is how many of the Machines that are created are in the reserve of the set: the last ones.
	Excess int
	// Cause is why a Machine is deleted, as in v1alpha1.CauseMachineFailed; empty otherwise.
	Cause string
	// Reason says to people why it is done.
	Reason string
}

// Plan returns what brings the set closer to its spec.
func Plan(f Facts) []Operation {
	switch {
	case orphaning.Pending(f.Set): // the garbage collector has yet to release the Machines
		return nil
	case f.Orphaned: // the garbage collector may not have known these Machines
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
	wanted := int(f.Set.Spec.Replicas)
	preservations, spared := autoPreserve(f, kept, count-wanted)
	operations, f.spared = append(operations, preservations...), spared
	if count < wanted && !f.Now.Before(f.NotBefore) {
		return append(operations, scaleUp(f, kept, count, wanted)...)
	}
	return append(operations, scaleDown(f, kept, count-wanted)...)
}

// adoptAndRelease adopts and releases Machines, and returns those that the set then has.
func adoptAndRelease(f Facts) ([]*v1alpha1.Machine, []Operation) {
	var kept []*v1alpha1.Machine
	var operations []Operation
	selector := Selector(f.Set.Spec.Selector)
	for _, machine := range f.Owned {
		if selector.Matches(labels.Set(machine.Labels)) {
			kept = append(kept, machine)
		} else {
			operations = append(operations, Operation{Action: Release, Machine: machine, Reason: "its labels do not match the selector any more"})
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

// byName sorts operations: the first failure goes into the status and must not change between passes.
func byName(operations []Operation) []Operation {
	slices.SortFunc(operations, func(a, b Operation) int { return cmp.Compare(a.Machine.Name, b.Machine.Name) })
	return operations
}

// update brings changes of the template into a burst of Machines. Their events start the next pass.
func update(f Facts) []Operation {
	var operations []Operation
	for _, outdated := range f.Outdated {
		operations = append(operations, Operation{Action: Update, Machine: outdated.Machine, Reason: whyUpdate(outdated)})
	}
	operations = byName(operations)
	slices.SortStableFunc(operations, func(a, b Operation) int { // pods may wait for those that leave the reserve
		return cmp.Compare(reserve.Rank(a.Machine), reserve.Rank(b.Machine))
	})
	return oneBurst(operations)
}

func whyUpdate(outdated Outdated) string {
	switch is := reserve.MarkOf(&outdated.Machine.Spec); {
	case is == outdated.Mark:
		return "the machine set has another " + strings.Join(outdated.Differences, ", ")
	case outdated.Mark == reserve.None:
		return "it is wanted for pods, and not in excess any more"
	case is == reserve.None:
		return "it is in excess of the machines that are wanted for pods"
	}
	return "machines in excess keep their nodes free in another way"
}

// scaleUp creates what is missing. A set that is being unfrozen does so in its next pass.
func scaleUp(f Facts, kept []*v1alpha1.Machine, count, wanted int) []Operation {
	_, disabled := f.Set.Labels[v1alpha1.LabelKeyMachineSetScaleUpDisabled]
	if disabled || Frozen(f.Set) {
		return nil
	}
	op := Operation{Action: Create, Count: min(wanted-count, Burst), Reason: fmt.Sprintf("%d of %d machines exist", count, wanted)}
	op.Excess = f.Reserve.Born(f.Set, kept, op.Count)
	return []Operation{op}
}

// each returns the same operation for each of some Machines.
func each(machines []*v1alpha1.Machine, op Operation) []Operation {
	var operations []Operation
	for _, machine := range machines {
		op.Machine = machine
		operations = append(operations, op)
	}
	return byName(operations)
}

func oneBurst(operations []Operation) []Operation { return operations[:min(len(operations), Burst)] }

// Overshoot configures when a set is frozen, that is, creates no Machines.
type Overshoot struct {
	// Up is how many Machines beyond its limit freeze a set. The limit is the replicas of its
	// deployment with the surge; for a set without a deployment, twice its own replicas.
	Up int32
	// Down is how many Machines fewer than froze it unfreeze a set. At least one fewer is needed, and
	// no Machines are always few enough.
	Down int32
}

// Frozen reports whether a set must not create Machines.
func Frozen(set *v1alpha1.MachineSet) bool { return set.Labels[v1alpha1.LabelKeyFreeze] == "True" }

// freezeOrUnfreeze freezes a set that has far too many Machines, and unfreezes it when it has fewer
// again or when an annotation asks for that.
//
// Machines that are being deleted or preserved do not count, nor does it matter that the deployment
// wants fewer than the set does: replacements, rollouts and late caches are no error. A set that is
// scaled down by many at once is frozen until those are being deleted; MCM does the same, and its
// integration tests wait for the two events.
func freezeOrUnfreeze(f Facts, count int) []Operation {
	if _, asked := f.Set.Annotations[v1alpha1.AnnotationKeyUnfreeze]; asked {
		return []Operation{{Action: Unfreeze, Reason: "the annotation " + v1alpha1.AnnotationKeyUnfreeze + " asks for it"}}
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
		return []Operation{{Action: Unfreeze, Reason: fmt.Sprintf("%d machines exist, which is no more than the limit of %d", count, low)}}
	}
	return nil
}

// TooMany says why a set is frozen.
func TooMany(count, limit int) string {
	return fmt.Sprintf("%d machines exist, which is no less than the limit of %d", count, limit)
}

// Exceeded returns how many Machines freeze a set of a deployment or nil, and whether it has as many.
func (o *Overshoot) Exceeded(set *v1alpha1.MachineSet, parent *v1alpha1.MachineDeployment, count int) (int, bool) {
	high := max(1, limit(set, parent)+int(o.Up))
	return high, count >= high
}

// limit returns how many Machines a set has at most. The deployment may be shown later than the set.
func limit(set *v1alpha1.MachineSet, parent *v1alpha1.MachineDeployment) int {
	if parent == nil {
		return 2 * int(set.Spec.Replicas)
	}
	return int(max(reserve.Desired(parent), set.Spec.Replicas)) + surge(parent)
}

// surge returns how many Machines beyond its replicas a deployment may have during a rollout. An
// invalid value counts as none: the deployment's controller reports it.
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
	number, err := intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(value, intstr.FromInt32(1)), int(reserve.Desired(deployment)), true)
	if err != nil {
		return 0
	}
	return max(0, number)
}
