package machineset

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/preservation"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// burst is how many Machines one pass creates or deletes at the most.
const burst = 100

// action is what an operation does.
type action string

const (
	adopt    action = "adopt"
	release  action = "release"
	update   action = "update"
	freeze   action = "freeze"
	unfreeze action = "unfreeze"
	create   action = "create"
	remove   action = "delete"
)

// operation is one thing to do, and why.
type operation struct {
	action action
	// machine is what is adopted, released, updated or deleted; nil for what concerns the
	// set.
	machine *v1alpha1.Machine
	// count is how many Machines are created.
	count  int
	reason string
	// cause is why a Machine is deleted, for programs.
	cause string
}

// plan says what brings the set closer to what is asked for.
func plan(f facts) []operation {
	switch {
	case orphaning(f.set):
		return nil
	case f.orphaned:
		return releaseAll(f)
	case !f.set.DeletionTimestamp.IsZero():
		return removeAll(f, v1alpha1.CauseOwnerDeleted, messages.SetDeleted)
	}
	kept, operations := claim(f)
	operations = append(operations, propagate(f)...)
	if !f.certain {
		return operations
	}
	count, held := 0, 0
	for _, machine := range kept {
		if active(machine) {
			count++
			held += int(one(preservation.Active(machine, f.now)))
		}
	}
	operations = append(operations, guard(f, count-held)...)
	wanted := int(f.set.Spec.Replicas)
	if count < wanted && !f.now.Before(f.notBefore) {
		return append(operations, grow(f, count, wanted)...)
	}
	return append(operations, shrink(f, kept, count-wanted)...)
}

// claim adopts strays that match, and releases what no longer does. It returns the
// Machines that are the set's after that.
func claim(f facts) ([]*v1alpha1.Machine, []operation) {
	var kept []*v1alpha1.Machine
	var operations []operation
	selected := f.selected()
	for _, machine := range f.owned {
		if selected(machine.Labels) {
			kept = append(kept, machine)
			continue
		}
		operations = append(operations, operation{action: release, machine: machine, reason: "its labels do not match the selector any more"})
	}
	for _, machine := range f.strays {
		if machine.DeletionTimestamp.IsZero() {
			kept = append(kept, machine)
			operations = append(operations, operation{action: adopt, machine: machine, reason: "it has no owner and its labels match the selector"})
		}
	}
	return kept, byName(operations)
}

// byName puts operations on Machines in order. A cache lists in none, and the first failure of
// the same operations has to be the same in each pass, since a status tells it.
func byName(operations []operation) []operation {
	slices.SortFunc(operations, func(a, b operation) int { return cmp.Compare(a.machine.Name, b.machine.Name) })
	return operations
}

// grow creates what is missing. A set that is about to be unfrozen does so when it is.
func grow(f facts, count, wanted int) []operation {
	_, disabled := f.set.Labels[v1alpha1.LabelKeyMachineSetScaleUpDisabled]
	if disabled || frozen(f.set) {
		return nil
	}
	return []operation{{
		action: create,
		count:  min(wanted-count, burst),
		reason: fmt.Sprintf("%d of %d machines exist", count, wanted),
	}}
}

// shrink removes what is too many, what failed, and what was named. There may also be too few,
// of which the set makes none for now.
func shrink(f facts, kept []*v1alpha1.Machine, surplus int) []operation {
	var operations []operation
	for _, victim := range victims(f, kept, surplus) {
		if len(operations) == burst {
			break
		}
		operations = append(operations, operation{action: remove, machine: victim.machine, reason: victim.reason, cause: victim.cause})
	}
	return operations
}

func removeAll(f facts, cause, reason string) []operation {
	var operations []operation
	for _, machine := range f.owned {
		if machine.DeletionTimestamp.IsZero() {
			operations = append(operations, operation{action: remove, machine: machine, reason: reason, cause: cause})
		}
	}
	return oneBurst(byName(operations))
}

func oneBurst(operations []operation) []operation { return operations[:min(len(operations), burst)] }
