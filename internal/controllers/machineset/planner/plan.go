package planner

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/preservation"
	"github.com/millwright-dev/millwright/internal/reconcile/cascade"
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
)

// Operation is one thing to do, and why.
type Operation struct {
	Action Action
	// Machine is what is adopted, released, updated or deleted; nil otherwise.
	Machine *v1alpha1.Machine
	// Count is how many Machines are created, or how many exist that freeze the set.
	Count int
	// Cause is why a Machine is deleted, as in v1alpha1.CauseMachineFailed; empty otherwise.
	Cause string
	// Reason says to people why it is done.
	Reason string
}

// Plan returns what brings the set closer to its spec.
func Plan(f Facts) []Operation {
	switch {
	case cascade.Orphaning(f.Set): // the garbage collector has yet to release the Machines
		return nil
	case f.Orphaned: // the garbage collector may not have known these Machines
		return each(f.Owned, Operation{Action: Release, Reason: "the machine set is deleted without its machines"})
	case !f.Set.DeletionTimestamp.IsZero():
		active := slices.DeleteFunc(slices.Clone(f.Owned), func(machine *v1alpha1.Machine) bool { return !Active(machine) })
		return oneBurst(each(active, Operation{Action: Delete, Cause: v1alpha1.CauseOwnerDeleted, Reason: messages.SetDeleted}))
	}
	kept, operations := adoptAndRelease(f)
	operations = append(operations, update(f)...)
	if !f.Current {
		return operations
	}
	count, preserved := 0, 0
	for _, machine := range kept {
		if !Active(machine) {
			continue
		}
		count++
		if preservation.Active(machine, f.Now) {
			preserved++
		}
	}
	operations = append(operations, freezeOrUnfreeze(f, count-preserved)...)
	wanted := int(f.Set.Spec.Replicas)
	if count < wanted && !f.Now.Before(f.NotBefore) {
		return append(operations, scaleUp(f, count, wanted)...)
	}
	return append(operations, scaleDown(f, kept, count-wanted)...)
}

// adoptAndRelease adopts unowned Machines, and releases those that the selector does not match any
// more. It returns the Machines that the set then has.
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
		if Active(machine) {
			kept = append(kept, machine)
			operations = append(operations, Operation{Action: Adopt, Machine: machine, Reason: "it has no owner and its labels match the selector"})
		}
	}
	return kept, byName(operations)
}

// byName sorts operations by Machine: the cache lists in no order, and the status shows the first
// failure, which must not change between passes.
func byName(operations []Operation) []Operation {
	slices.SortFunc(operations, func(a, b Operation) int { return cmp.Compare(a.Machine.Name, b.Machine.Name) })
	return operations
}

// update brings changes of the template into a burst of Machines. Their events start the next pass.
func update(f Facts) []Operation {
	var operations []Operation
	for _, outdated := range f.Outdated {
		operations = append(operations, Operation{
			Action: Update, Machine: outdated.Machine, Reason: "the machine set has another " + strings.Join(outdated.Differences, ", "),
		})
	}
	return oneBurst(byName(operations))
}

// scaleUp creates what is missing. A set that is being unfrozen does so in its next pass.
func scaleUp(f Facts, count, wanted int) []Operation {
	_, disabled := f.Set.Labels[v1alpha1.LabelKeyMachineSetScaleUpDisabled]
	if disabled || Frozen(f.Set) {
		return nil
	}
	return []Operation{{Action: Create, Count: min(wanted-count, Burst), Reason: fmt.Sprintf("%d of %d machines exist", count, wanted)}}
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
