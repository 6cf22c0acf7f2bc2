package planner

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/nodeupdate"
	machineset "github.com/millwright-dev/millwright/internal/controllers/machineset/planner"
	"github.com/millwright-dev/millwright/internal/lifecycle/preservation"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// UpdateInPlace returns the facts of a deployment whose Machines can be updated in place, since there is a
// cluster with their nodes. It takes the Machines of all sets, by the names of the sets. Without it, the
// Machines of a deployment with that strategy stay as they are.
func (f Facts) UpdateInPlace(machines map[string][]*v1alpha1.Machine) Facts {
	f.inPlace, f.machines = true, machines
	f.surge, f.unavailable = Bounds(f.Deployment)
	return f
}

// HasMachines reports whether a set has Machines, in a deployment that is updated in place.
func (f Facts) HasMachines(set *v1alpha1.MachineSet) bool { return len(f.machines[set.Name]) > 0 }

// NodesConcerned reports whether the nodes have to be read for an update in place, even if no rollout is
// under way: Machines were moved and are to be settled, or somebody selected nodes.
func NodesConcerned(f Facts) bool {
	for _, set := range f.All() {
		for _, machine := range f.machines[set.Name] {
			state := nodeupdate.State(machine)
			if nodeupdate.Moved(machine) || state != "" && state != v1alpha1.UpdateSuccessful || nodeupdate.Failed(machine, nil) {
				return true
			}
		}
	}
	return false
}

// manual reports whether users select the nodes to update.
func manual(deployment *v1alpha1.MachineDeployment) bool {
	update := deployment.Spec.Strategy.InPlaceUpdate
	return update != nil && update.OrchestrationType == v1alpha1.OrchestrationTypeManual
}

// planInPlace has the replicas of the sets follow the Machines that are moved or gone, takes what is too
// many, and creates what is missing, and the surge, in the current set. Old sets create nothing.
func planInPlace(f Facts) []Operation {
	if !allSettled(f) || !counted(f) {
		return nil
	}
	if operations := planCounts(f); len(operations) > 0 {
		return operations
	}
	switch {
	case tooMany(f) == 0:
		return grow(f)
	case f.Nodes != nil && f.Nodes.Stale: // it is not known which Machines are being updated
		return nil
	}
	return planSurplus(f)
}

// counted reports whether the cache shows all Machines that the sets report.
func counted(f Facts) bool {
	return !slices.ContainsFunc(f.All(), func(set *v1alpha1.MachineSet) bool { return int(set.Status.Replicas) > len(f.machines[set.Name]) })
}

// active returns how many Machines of a set are not being deleted.
func (f Facts) active(set *v1alpha1.MachineSet) (n int32) {
	for _, machine := range f.machines[set.Name] {
		if machineset.Active(machine) {
			n++
		}
	}
	return n
}

// moved returns how many Machines of a set were moved there, and are to be counted.
func (f Facts) moved(set *v1alpha1.MachineSet) (n int32) {
	for _, machine := range f.machines[set.Name] {
		if machineset.Active(machine) && nodeupdate.Moved(machine) {
			n++
		}
	}
	return n
}

// leaving returns how many Machines a set is about to delete.
func (f Facts) leaving(set *v1alpha1.MachineSet) int32 {
	return max(0, f.active(set)-f.moved(set)-Desired(set))
}

// createsNone reports whether a set has the label that keeps it from creating Machines.
func createsNone(set *v1alpha1.MachineSet) bool {
	_, ok := set.Labels[v1alpha1.LabelKeyMachineSetScaleUpDisabled]
	return ok
}

// planCounts raises the replicas of sets to which Machines were moved, and lowers those of sets that
// create none and have fewer Machines. Neither creates or deletes any.
func planCounts(f Facts) []Operation {
	var operations []Operation
	for _, set := range f.All() {
		if !set.DeletionTimestamp.IsZero() {
			continue
		}
		desired, active := Desired(set), f.active(set)
		raised := min(active, desired+f.moved(set))
		if set == f.Current {
			raised = min(raised, f.Deployment.Spec.Replicas)
		}
		switch {
		case raised > desired:
			operations = append(operations, scaleTo(set, raised, updatedHere(raised-desired)))
		case active < desired && createsNone(set):
			operations = append(operations, scaleTo(set, active, fmt.Sprintf("%d of its %s moved to another set, or %s gone", desired-active, messages.Machines(desired), messages.Are(desired-active))))
		}
	}
	return operations
}

func updatedHere(n int32) string {
	if n == 1 {
		return "1 machine was updated in place and is its own now"
	}
	return fmt.Sprintf("%d machines were updated in place and are its own now", n)
}

// tooMany returns how many Machines the sets are to lose: those beyond the surge and, when the current set
// has all its Machines, all others.
func tooMany(f Facts) int32 {
	most := limit(f)
	if f.Current != nil && Desired(f.Current) >= f.Deployment.Spec.Replicas {
		most = f.Deployment.Spec.Replicas
	}
	return Clamp(Total(f.All(), Desired) - int64(most))
}

// surplus is a Machine that may be deleted as one of too many.
type surplus struct {
	set *v1alpha1.MachineSet
	// usable reports whether it is available and takes no part in the update.
	named, updating, available, usable bool
}

// planSurplus lowers the replicas of sets, of old ones first: by Machines named for deletion, unavailable
// ones, and others while enough stay available. Machines that are being updated are left to the end of
// their update, unless none is wanted. The current set loses only what it has beyond the wanted ones.
func planSurplus(f Facts) []Operation {
	wanted, rest, spare := f.Deployment.Spec.Replicas, tooMany(f), usable(f)-least(f)
	taken := map[*v1alpha1.MachineSet]int32{}
	for _, c := range deletable(f) {
		has := Desired(c.set) - taken[c.set]
		switch {
		case rest == 0 || has == 0 || f.leaving(c.set) > 0 || c.set == f.Current && has <= wanted && !c.named, c.updating && wanted > 0:
			continue
		case c.usable && !c.named && spare <= 0:
			continue
		case c.usable:
			spare--
		}
		taken[c.set]++
		rest--
	}
	var operations []Operation
	for _, set := range f.All() {
		if n := taken[set]; n > 0 {
			operations = append(operations, scaleTo(set, Desired(set)-n, wants(f)+fmt.Sprintf(", and %d more %s", n, messages.Are(n))))
		}
	}
	return operations
}

// deletable returns the Machines that may be deleted as surplus ones, in that order. Within a set, it is
// the set that chooses, in the same order.
func deletable(f Facts) []surplus {
	nodes := f.nodes()
	var all []surplus
	for _, set := range f.All() {
		if !set.DeletionTimestamp.IsZero() {
			continue
		}
		for _, machine := range f.machines[set.Name] {
			if !machineset.Active(machine) || nodeupdate.Moved(machine) || preservation.Active(machine, f.Now) {
				continue
			}
			all = append(all, surplus{
				set: set, named: machineset.Named(machine, set), available: machineset.Available(machine),
				updating: unfinished(machine, nodes[machine.Name]), usable: usableNow(machine, nodes[machine.Name]),
			})
		}
	}
	order := func(s surplus) int {
		switch {
		case s.named:
			return 0
		case s.updating:
			return 3
		case s.available:
			return 2
		}
		return 1
	}
	slices.SortStableFunc(all, func(a, b surplus) int { return cmp.Compare(order(a), order(b)) })
	return all
}

// unfinished reports whether a Machine takes part in the update, and its result is not known.
func unfinished(machine *v1alpha1.Machine, node *corev1.Node) bool {
	return nodeupdate.Undergoing(machine, node) && !nodeupdate.Failed(machine, node) && !nodeupdate.Updated(machine, node)
}

// nodes returns the known nodes by the names of their Machines.
func (f Facts) nodes() map[string]*corev1.Node {
	nodes := map[string]*corev1.Node{}
	if f.Nodes != nil {
		for _, n := range slices.Concat(f.Nodes.OfOld, f.Nodes.OfCurrent) {
			nodes[n.Machine.Name] = n.Node
		}
	}
	return nodes
}

// least returns how many Machines have to stay available.
func least(f Facts) int32 {
	return Clamp(int64(f.Deployment.Spec.Replicas-f.unavailable) - Total(f.All(), preservedFailed))
}

// usable returns how many Machines are available and take no part in the update. The sets know which of
// them are ready for long enough.
func usable(f Facts) int32 {
	nodes := f.nodes()
	var all int32
	for _, set := range f.All() {
		var n int32
		for _, machine := range f.machines[set.Name] {
			if usableNow(machine, nodes[machine.Name]) {
				n++
			}
		}
		all += max(0, min(n-f.leaving(set), Available(set)))
	}
	return all
}

func usableNow(machine *v1alpha1.Machine, node *corev1.Node) bool {
	return machineset.Active(machine) && machineset.Available(machine) && !nodeupdate.Undergoing(machine, node)
}

// undergoing returns how many Machines of old sets take part in the update.
func undergoing(f Facts) (n int32) {
	nodes := f.nodes()
	for _, set := range f.Old {
		for _, machine := range f.machines[set.Name] {
			if machineset.Active(machine) && nodeupdate.Undergoing(machine, nodes[machine.Name]) {
				n++
			}
		}
	}
	return n
}

// selection returns the names of the Machines whose nodes are selected now: as many as can be spared, and
// as the current set lacks, of the oldest sets first. A failed one keeps its place until it is replaced.
func selection(f Facts) map[string]bool {
	if !f.inPlace || suspended(f) || manual(f.Deployment) || f.Current == nil || f.Nodes == nil || f.Nodes.Stale || replaced(f) || tooMany(f) > 0 {
		return nil
	}
	has := max(Desired(f.Current), f.active(f.Current))
	places := min(usable(f)-least(f), f.Deployment.Spec.Replicas-has-undergoing(f))
	selected := map[string]bool{}
	for _, n := range f.ofOld() {
		if int32(len(selected)) >= places {
			break
		}
		if machineset.Available(n.Machine) && nodeupdate.Selectable(n.Machine, n.Node) && !named(n.Machine) {
			selected[n.Machine.Name] = true
		}
	}
	return selected
}

// named reports whether a Machine is marked as named for deletion.
func named(machine *v1alpha1.Machine) bool {
	return machine.Annotations[v1alpha1.AnnotationKeyMarkedForDeletionTime] != "" &&
		machine.Annotations[v1alpha1.AnnotationKeyMachinePriority] == FirstPriority
}

// ofOld returns the nodes of old sets in the order in which they are updated, without those of sets that
// are being deleted or are about to delete Machines.
func (f Facts) ofOld() []Node {
	at := map[string]int{}
	for i, set := range f.Old {
		for _, machine := range f.machines[set.Name] {
			at[machine.Name] = i
		}
	}
	nodes := slices.DeleteFunc(slices.Clone(f.Nodes.OfOld), func(n Node) bool {
		set := f.setOf(n.Machine)
		return set == nil || !set.DeletionTimestamp.IsZero() || f.leaving(set) > 0
	})
	slices.SortFunc(nodes, func(a, b Node) int {
		return cmp.Or(cmp.Compare(at[a.Machine.Name], at[b.Machine.Name]),
			a.Machine.CreationTimestamp.Compare(b.Machine.CreationTimestamp.Time), cmp.Compare(a.Machine.Name, b.Machine.Name))
	})
	return nodes
}

// planTransfers moves the Machines whose nodes were updated to the current set, as many as it lacks. Their
// sets must have been told to create no others.
func planTransfers(f Facts) []Operation {
	if !f.inPlace || suspended(f) || f.Current == nil || f.Nodes == nil {
		return nil
	}
	lacks := f.Deployment.Spec.Replicas - max(Desired(f.Current), f.active(f.Current))
	var operations []Operation
	for _, n := range f.ofOld() {
		if int32(len(operations)) >= lacks {
			break
		}
		from := f.setOf(n.Machine)
		if machineset.Active(n.Machine) && nodeupdate.Updated(n.Machine, n.Node) && !nodeupdate.Moved(n.Machine) && !named(n.Machine) && createsNone(from) {
			operations = append(operations, Operation{Action: Transfer, Machine: n.Machine, From: from, Set: f.Current, Reason: "its node was updated in place"})
		}
	}
	return operations
}

// countsAll reports whether the replicas of a set count all its Machines, or all that are wanted, and the
// set has seen that.
func (f Facts) countsAll(set *v1alpha1.MachineSet) bool {
	full := set == f.Current && Desired(set) >= f.Deployment.Spec.Replicas
	return set.DeletionTimestamp.IsZero() && settled(set) && (full || Desired(set) >= f.active(set))
}

// planSettling removes the label of moved Machines that the replicas of their sets count, and whose nodes
// are in use again. The set must have seen its replicas, or it might delete another Machine.
func planSettling(f Facts) []Operation {
	if !f.inPlace || suspended(f) || f.Nodes == nil || f.Nodes.Stale {
		return nil
	}
	nodes := f.nodes()
	var operations []Operation
	for _, set := range f.All() {
		if !f.countsAll(set) {
			continue
		}
		for _, machine := range f.machines[set.Name] {
			node := nodes[machine.Name]
			cleaned := node == nil || node.Labels[v1alpha1.LabelKeyNodeUpdateResult] == ""
			if machineset.Active(machine) && nodeupdate.Moved(machine) && cleaned {
				operations = append(operations, Operation{Action: Settle, Machine: machine, Set: set, Reason: "its set counts it"})
			}
		}
	}
	return operations
}
