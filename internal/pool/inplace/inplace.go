// Package inplace plans how the nodes of a MachineDeployment are updated in place.
//
// Machines of old sets are selected as long as enough others stay available. Those whose nodes were
// updated move to the current set. It is pure, and knows Machines and nodes; the planner of the deployment
// makes operations of the answers.
package inplace

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/preservation"
	"github.com/millwright-dev/millwright/internal/pool/counts"
	"github.com/millwright-dev/millwright/internal/pool/inplaceupdate"
	"github.com/millwright-dev/millwright/internal/pool/reserve"
	"github.com/millwright-dev/millwright/internal/pool/scale"
)

// Update is an update in place. It is read-only.
type Update struct {
	// Wanted are the deployment's replicas; Least is how many Machines have to stay available.
	Wanted, Least int32
	// Old are the sets of other templates, the oldest first; Current is nil if there is none yet.
	Old     []*v1alpha1.MachineSet
	Current *v1alpha1.MachineSet
	// Machines are those of all sets, by the names of the sets.
	Machines map[string][]*v1alpha1.Machine
	// Nodes are the known nodes, by the names of their Machines.
	Nodes map[string]*corev1.Node
	// Named reports whether a Machine is marked as named for deletion.
	Named func(*v1alpha1.Machine) bool
	// Now is the time of the pass.
	Now time.Time
}

// Manual reports whether users select the nodes to update.
func Manual(deployment *v1alpha1.MachineDeployment) bool {
	update := deployment.Spec.Strategy.InPlaceUpdate
	return update != nil && update.OrchestrationType == v1alpha1.OrchestrationTypeManual
}

// CreatesNone reports whether a set has the label that keeps it from creating Machines.
func CreatesNone(set *v1alpha1.MachineSet) bool {
	_, ok := set.Labels[v1alpha1.LabelKeyMachineSetScaleUpDisabled]
	return ok
}

// Concerned reports whether some Machines take part in an update, or came to their set by one that is not
// concluded.
func Concerned(machines []*v1alpha1.Machine) bool {
	return slices.ContainsFunc(machines, func(machine *v1alpha1.Machine) bool {
		state := inplaceupdate.State(machine)
		return inplaceupdate.Moved(machine) || state != "" && state != v1alpha1.UpdateSuccessful || inplaceupdate.Failed(machine, nil)
	})
}

// Active returns how many Machines are not being deleted.
func Active(machines []*v1alpha1.Machine) (n int32) {
	for _, machine := range machines {
		if scale.Active(machine) {
			n++
		}
	}
	return n
}

// Moved returns how many Machines were moved to their set, and are to be counted by it.
func Moved(machines []*v1alpha1.Machine) (n int32) {
	for _, machine := range machines {
		if scale.Active(machine) && inplaceupdate.Moved(machine) {
			n++
		}
	}
	return n
}

// all returns the sets, the current one last.
func (u Update) all() []*v1alpha1.MachineSet {
	all := slices.Clone(u.Old)
	if u.Current != nil {
		all = append(all, u.Current)
	}
	return all
}

// of returns the Machines of a set.
func (u Update) of(set *v1alpha1.MachineSet) []*v1alpha1.Machine { return u.Machines[set.Name] }

// leaving returns how many Machines a set is about to delete.
func (u Update) leaving(set *v1alpha1.MachineSet) int32 {
	return max(0, Active(u.of(set))-Moved(u.of(set))-counts.Desired(set))
}

// lacks returns how many Machines the current set can take over.
func (u Update) lacks() int32 {
	return u.Wanted - max(counts.Desired(u.Current), Active(u.of(u.Current)))
}

// usable returns how many Machines are available and take no part in the update. The sets know which of
// them are ready for long enough.
func (u Update) usable() int32 {
	var all int32
	for _, set := range u.all() {
		var n int32
		for _, machine := range u.of(set) {
			if u.usableNow(machine) {
				n++
			}
		}
		all += max(0, min(n-u.leaving(set), counts.Available(set)))
	}
	return all
}

func (u Update) usableNow(machine *v1alpha1.Machine) bool {
	return scale.Active(machine) && scale.Available(machine) && !inplaceupdate.Undergoing(machine, u.Nodes[machine.Name])
}

// undergoing returns how many Machines of old sets take part in the update.
func (u Update) undergoing() (n int32) {
	for _, set := range u.Old {
		for _, machine := range u.of(set) {
			if scale.Active(machine) && inplaceupdate.Undergoing(machine, u.Nodes[machine.Name]) {
				n++
			}
		}
	}
	return n
}

// Selection returns the names of the Machines whose nodes are selected now: as many as can be spared, and
// as the current set lacks, of the oldest sets first. A failed one keeps its place until it is replaced.
func (u Update) Selection() map[string]bool {
	selected := map[string]bool{}
	if u.Current == nil {
		return selected
	}
	places := min(u.usable()-u.Least, u.lacks()-u.undergoing())
	for _, m := range u.turns() {
		if int32(len(selected)) >= places {
			break
		}
		if scale.Available(m.Machine) && inplaceupdate.Selectable(m.Machine, u.Nodes[m.Machine.Name]) && !u.Named(m.Machine) {
			selected[m.Machine.Name] = true
		}
	}
	return selected
}

// Member is a Machine and its set.
type Member struct {
	Machine *v1alpha1.Machine
	Set     *v1alpha1.MachineSet
}

// turns returns the Machines of old sets with known nodes in the order in which they are updated, without
// those of sets that are being deleted or are about to delete Machines.
func (u Update) turns() []Member {
	var all []Member
	for _, set := range u.Old {
		if !set.DeletionTimestamp.IsZero() || u.leaving(set) > 0 {
			continue
		}
		first := len(all)
		for _, machine := range u.of(set) {
			if u.Nodes[machine.Name] != nil {
				all = append(all, Member{machine, set})
			}
		}
		slices.SortFunc(all[first:], func(a, b Member) int {
			return cmp.Or(cmp.Compare(place(a.Machine), place(b.Machine)),
				a.Machine.CreationTimestamp.Compare(b.Machine.CreationTimestamp.Time), cmp.Compare(a.Machine.Name, b.Machine.Name))
		})
	}
	return all
}

// place is lower for Machines in excess, which are updated first: no pods run there.
func place(machine *v1alpha1.Machine) int {
	if reserve.In(&machine.Spec) {
		return 0
	}
	return 1
}

// Transfers returns the Machines whose nodes were updated and that move to the current set now, as many as
// it lacks. Their sets must have been told to create no others.
func (u Update) Transfers() []Member {
	if u.Current == nil {
		return nil
	}
	lacks := u.lacks()
	var moves []Member
	for _, m := range u.turns() {
		if int32(len(moves)) >= lacks {
			break
		}
		if scale.Active(m.Machine) && inplaceupdate.Updated(m.Machine, u.Nodes[m.Machine.Name]) &&
			!inplaceupdate.Moved(m.Machine) && !u.Named(m.Machine) && CreatesNone(m.Set) {
			moves = append(moves, m)
		}
	}
	return moves
}

// Countable returns the Machines of a set that were moved, and become like any other: the replicas of the
// set count them, or all that are wanted, the set has seen that, and the nodes are in use again. Before,
// the set might delete another Machine.
func (u Update) Countable(set *v1alpha1.MachineSet) []*v1alpha1.Machine {
	full := set == u.Current && counts.Desired(set) >= u.Wanted
	if !set.DeletionTimestamp.IsZero() || !counts.Settled(set) || !full && counts.Desired(set) < Active(u.of(set)) {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(u.of(set)), func(machine *v1alpha1.Machine) bool {
		node := u.Nodes[machine.Name]
		inUse := node == nil || node.Labels[v1alpha1.LabelKeyNodeUpdateResult] == ""
		return !scale.Active(machine) || !inplaceupdate.Moved(machine) || !inUse
	})
}

// Blocked says of each Machine of an old set why its update does not go on by itself, by the names of the
// Machines. With manual, that includes those that users are to select.
func (u Update) Blocked(manual bool) []string {
	var why []string
	for _, set := range u.Old {
		for _, machine := range u.of(set) {
			if reason := blocked(machine, u.Nodes[machine.Name], manual); reason != "" && scale.Active(machine) {
				why = append(why, fmt.Sprintf("machine %s: %s", machine.Name, reason))
			}
		}
	}
	slices.Sort(why)
	return why
}

func blocked(machine *v1alpha1.Machine, node *corev1.Node, manual bool) string {
	says := inplaceupdate.Read(node)
	problem := says.Check(machine)
	switch {
	case machine.Status.CurrentStatus.Phase == v1alpha1.MachineFailed: // it is replaced
		return ""
	case inplaceupdate.Failed(machine, node):
		return "the update of its node failed: " + cmp.Or(says.FailureReason, machine.Status.LastOperation.Description)
	case problem.Blocks:
		return "the labels of its node are wrong: " + problem.Message
	case manual && node != nil && inplaceupdate.Selectable(machine, node):
		return "its node is not selected"
	}
	return ""
}

// surplus is a Machine that may be deleted as one of too many.
type surplus struct {
	set *v1alpha1.MachineSet
	// usable reports whether it is available and takes no part in the update.
	named, updating, available, usable bool
}

// Surplus returns how many Machines each set loses if there are so many too many: Machines named for
// deletion, unavailable ones, and others while enough stay available, of old sets first. Machines that are
// being updated are left to the end of their update, unless none is wanted. The current set loses only what
// it has beyond the wanted ones.
func (u Update) Surplus(rest int32) map[*v1alpha1.MachineSet]int32 {
	spare := u.usable() - u.Least
	taken := map[*v1alpha1.MachineSet]int32{}
	for _, c := range u.deletable() {
		has := counts.Desired(c.set) - taken[c.set]
		switch {
		case rest == 0 || has == 0 || u.leaving(c.set) > 0 || c.set == u.Current && has <= u.Wanted && !c.named, c.updating && u.Wanted > 0:
			continue
		case c.usable && !c.named && spare <= 0:
			continue
		case c.usable:
			spare--
		}
		taken[c.set]++
		rest--
	}
	return taken
}

// deletable returns the Machines that may be deleted as surplus ones, in that order. Within a set, it is
// the set that chooses, in the same order.
func (u Update) deletable() []surplus {
	var all []surplus
	for _, set := range u.all() {
		if !set.DeletionTimestamp.IsZero() {
			continue
		}
		for _, machine := range u.of(set) {
			if !scale.Active(machine) || inplaceupdate.Moved(machine) || preservation.Active(machine, u.Now) {
				continue
			}
			all = append(all, surplus{
				set: set, named: scale.Named(machine, set), available: scale.Available(machine),
				updating: unfinished(machine, u.Nodes[machine.Name]), usable: u.usableNow(machine),
			})
		}
	}
	slices.SortStableFunc(all, func(a, b surplus) int { return cmp.Compare(a.rank(), b.rank()) })
	return all
}

// rank is lower for a Machine that is deleted earlier.
func (s surplus) rank() int {
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

// unfinished reports whether a Machine takes part in the update, and its result is not known.
func unfinished(machine *v1alpha1.Machine, node *corev1.Node) bool {
	return inplaceupdate.Undergoing(machine, node) && !inplaceupdate.Failed(machine, node) && !inplaceupdate.Updated(machine, node)
}
