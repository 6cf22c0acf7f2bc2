package rollout

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/preservation"
	"github.com/millwright-dev/millwright/internal/pool/counts"
	"github.com/millwright-dev/millwright/internal/pool/deletion"
	"github.com/millwright-dev/millwright/internal/pool/inplaceupdate"
	"github.com/millwright-dev/millwright/internal/pool/reserve"
)

// Machines of old sets are updated in place as long as enough others remain available. When their nodes are
// updated, they move to the current set.

// active returns how many Machines of a set are not being deleted.
func (r *Rollout) active(set *v1alpha1.MachineSet) int32 {
	return r.count(set, counts.Active)
}

// moved returns how many Machines were moved to a set whose replicas may not count them yet.
func (r *Rollout) moved(set *v1alpha1.MachineSet) int32 {
	return r.count(set, func(machine *v1alpha1.Machine) bool { return counts.Active(machine) && inplaceupdate.Moved(machine) })
}

func (r *Rollout) count(set *v1alpha1.MachineSet, counted func(*v1alpha1.Machine) bool) (n int32) {
	for _, machine := range r.Machines[set.Name] {
		if counted(machine) {
			n++
		}
	}
	return n
}

// leaving returns how many Machines a set is about to delete.
func (r *Rollout) leaving(set *v1alpha1.MachineSet) int32 {
	return max(0, r.active(set)-r.moved(set)-counts.Desired(set))
}

// lacks returns how many Machines the current set can take over.
func (r *Rollout) lacks() int32 {
	return r.Desired - max(counts.Desired(r.Current), r.active(r.Current))
}

// usable returns how many Machines are available and not part of the update. It is limited by what the sets
// report as available, because only they know which Machines have been ready for long enough.
func (r *Rollout) usable() int32 {
	var all int32
	for _, set := range r.sets {
		var n int32
		for _, machine := range r.Machines[set.Name] {
			if r.usableNow(machine) {
				n++
			}
		}
		all += max(0, min(n-r.leaving(set), counts.Available(set)))
	}
	return all
}

func (r *Rollout) usableNow(machine *v1alpha1.Machine) bool {
	return counts.Active(machine) && counts.Usable(machine) && !inplaceupdate.Undergoing(machine, r.nodeOf[machine.Name])
}

// undergoing returns how many Machines of old sets are part of the update.
func (r *Rollout) undergoing() (n int32) {
	for _, set := range r.Old {
		for _, machine := range r.Machines[set.Name] {
			if counts.Active(machine) && inplaceupdate.Undergoing(machine, r.nodeOf[machine.Name]) {
				n++
			}
		}
	}
	return n
}

// selectable returns the names of the Machines whose nodes are selected now, those of the oldest sets first. It
// selects as many as the current set lacks and availability allows. A failed Machine counts until it is
// replaced.
func (r *Rollout) selectable() map[string]bool {
	selected := map[string]bool{}
	if r.Current == nil {
		return selected
	}
	places := min(r.usable()-counts.Clamp(r.minAvailable), r.lacks()-r.undergoing())
	for _, m := range r.turns() {
		if int32(len(selected)) >= places {
			break
		}
		if counts.Usable(m.Machine) && inplaceupdate.Selectable(m.Machine, r.nodeOf[m.Machine.Name]) && deletion.Marked(m.Machine) == "" {
			selected[m.Machine.Name] = true
		}
	}
	return selected
}

// member is a Machine with its set.
type member struct {
	Machine *v1alpha1.Machine
	Set     *v1alpha1.MachineSet
}

// turns returns the Machines of old sets with known nodes, in the order in which they are updated. It leaves
// out sets that are being deleted or are about to delete Machines.
func (r *Rollout) turns() []member {
	var all []member
	for _, set := range r.Old {
		if !set.DeletionTimestamp.IsZero() || r.leaving(set) > 0 {
			continue
		}
		first := len(all)
		for _, machine := range r.Machines[set.Name] {
			if r.nodeOf[machine.Name] != nil {
				all = append(all, member{machine, set})
			}
		}
		slices.SortFunc(all[first:], func(a, b member) int {
			return cmp.Or(cmp.Compare(reserve.Rank(a.Machine), reserve.Rank(b.Machine)),
				a.Machine.CreationTimestamp.Compare(b.Machine.CreationTimestamp.Time), cmp.Compare(a.Machine.Name, b.Machine.Name))
		})
	}
	return all
}

// transfers returns the updated Machines that move to the current set now, at most as many as it lacks. Their
// sets must be labeled so that they create no Machines.
func (r *Rollout) transfers() []member {
	if r.Current == nil {
		return nil
	}
	lacks := r.lacks()
	var moves []member
	for _, m := range r.turns() {
		if int32(len(moves)) >= lacks {
			break
		}
		if counts.Active(m.Machine) && inplaceupdate.Updated(m.Machine, r.nodeOf[m.Machine.Name]) &&
			!inplaceupdate.Moved(m.Machine) && deletion.Marked(m.Machine) == "" && inplaceupdate.CreatesNone(m.Set) {
			moves = append(moves, m)
		}
	}
	return moves
}

// countable returns the moved Machines of a set that can be settled. This requires that the set's replicas
// count them or that the set has all desired replicas, that the set has observed that, and that the nodes are
// in use again. Settled earlier, the set might delete another Machine.
func (r *Rollout) countable(set *v1alpha1.MachineSet) []*v1alpha1.Machine {
	full := set == r.Current && counts.Desired(set) >= r.Desired
	if !set.DeletionTimestamp.IsZero() || !counts.Settled(set) || !full && counts.Desired(set) < r.active(set) {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(r.Machines[set.Name]), func(machine *v1alpha1.Machine) bool {
		node := r.nodeOf[machine.Name]
		inUse := node == nil || node.Labels[v1alpha1.LabelKeyNodeUpdateResult] == ""
		return !counts.Active(machine) || !inplaceupdate.Moved(machine) || !inUse
	})
}

// blocked returns why updates of Machines of old sets do not continue without intervention, sorted by Machine
// name. If manual is true, that includes nodes that users have yet to select.
func (r *Rollout) blocked(manual bool) []string {
	var why []string
	for _, set := range r.Old {
		for _, machine := range r.Machines[set.Name] {
			if reason := whyBlocked(machine, r.nodeOf[machine.Name], manual); reason != "" && counts.Active(machine) {
				why = append(why, fmt.Sprintf("machine %s: %s", machine.Name, reason))
			}
		}
	}
	slices.Sort(why)
	return why
}

// whyBlocked returns why the update of a Machine does not continue without intervention, or an empty string if
// it does.
func whyBlocked(machine *v1alpha1.Machine, node *corev1.Node, manual bool) string {
	labels := inplaceupdate.Read(node)
	problem := labels.Check(machine)
	switch {
	case machine.Status.CurrentStatus.Phase == v1alpha1.MachineFailed: // it is replaced
		return ""
	case inplaceupdate.Failed(machine, node):
		return "the update of its node failed: " + cmp.Or(labels.FailureReason, machine.Status.LastOperation.Description)
	case problem.Blocks:
		return "its node has invalid labels: " + problem.Message
	case manual && node != nil && inplaceupdate.Selectable(machine, node):
		return "its node is not selected"
	}
	return ""
}

// spare is a Machine that may be deleted as surplus.
type spare struct {
	set *v1alpha1.MachineSet
	// usable reports whether it is available and not part of the update.
	named, updating, available, usable bool
}

// surplus returns how many of the given number of surplus Machines each set loses. It takes Machines named for
// deletion first, then unavailable ones, then others as long as enough remain available, and prefers old sets.
// Updates in progress are completed first, unless no Machines are desired. The current set loses only what it
// has beyond the desired number.
func (r *Rollout) surplus(rest int32) map[*v1alpha1.MachineSet]int32 {
	left := r.usable() - counts.Clamp(r.minAvailable)
	taken := map[*v1alpha1.MachineSet]int32{}
	for _, c := range r.deletable() {
		has := counts.Desired(c.set) - taken[c.set]
		switch {
		case rest == 0 || has == 0 || r.leaving(c.set) > 0 || c.set == r.Current && has <= r.Desired && !c.named, c.updating && r.Desired > 0:
			continue
		case c.usable && !c.named && left <= 0:
			continue
		case c.usable:
			left--
		}
		taken[c.set]++
		rest--
	}
	return taken
}

// deletable returns the Machines that may be deleted as surplus, in order of deletion. Within a set, the set
// itself chooses, in the same order.
func (r *Rollout) deletable() []spare {
	var all []spare
	for _, set := range r.sets {
		if !set.DeletionTimestamp.IsZero() {
			continue
		}
		for _, machine := range r.Machines[set.Name] {
			if !counts.Active(machine) || inplaceupdate.Moved(machine) || preservation.Active(machine, r.Now) {
				continue
			}
			all = append(all, spare{
				set: set, named: deletion.Named(machine, set), available: counts.Usable(machine),
				updating: unfinished(machine, r.nodeOf[machine.Name]), usable: r.usableNow(machine),
			})
		}
	}
	slices.SortStableFunc(all, func(a, b spare) int { return cmp.Compare(a.rank(), b.rank()) })
	return all
}

// rank returns the order of deletion. Machines with a lower rank are deleted earlier.
func (s spare) rank() int {
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

// unfinished reports whether a Machine is part of the update and its result is not known yet.
func unfinished(machine *v1alpha1.Machine, node *corev1.Node) bool {
	return inplaceupdate.Undergoing(machine, node) && !inplaceupdate.Failed(machine, node) && !inplaceupdate.Updated(machine, node)
}
