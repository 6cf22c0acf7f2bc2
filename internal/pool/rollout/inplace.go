package rollout

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/counts"
	"github.com/millwright-dev/millwright/internal/pool/inplace"
	"github.com/millwright-dev/millwright/internal/pool/inplaceupdate"
	"github.com/millwright-dev/millwright/internal/pool/reserve"
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
	return slices.ContainsFunc(f.All(), func(set *v1alpha1.MachineSet) bool { return inplace.Concerned(f.machines[set.Name]) })
}

// update returns the update in place of the facts.
func (f Facts) update() inplace.Update {
	nodes := map[string]*corev1.Node{}
	if f.Nodes != nil {
		for _, n := range slices.Concat(f.Nodes.OfOld, f.Nodes.OfCurrent) {
			nodes[n.Machine.Name] = n.Node
		}
	}
	return inplace.Update{
		Wanted: reserve.Wanted(f.Deployment),
		Least:  counts.Clamp(int64(reserve.Wanted(f.Deployment)-f.unavailable) - counts.Total(f.All(), counts.PreservedFailed)),
		Old:    f.Old, Current: f.Current, Machines: f.machines, Nodes: nodes, Now: f.Now,
		Named: func(machine *v1alpha1.Machine) bool {
			return machine.Annotations[v1alpha1.AnnotationKeyMarkedForDeletionTime] != "" &&
				machine.Annotations[v1alpha1.AnnotationKeyMachinePriority] == FirstPriority
		},
	}
}

// planInPlace has the replicas of the sets follow the Machines that are moved or gone, takes what is too
// many, and creates what is missing, and the surge, in the current set. Old sets create nothing.
func planInPlace(f Facts) []Operation {
	if !allSettled(f) || !Counted(f) {
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
	taken := f.update().Surplus(tooMany(f))
	var operations []Operation
	for _, set := range f.All() {
		if n := taken[set]; n > 0 {
			operations = append(operations, scaleTo(set, counts.Desired(set)-n, wants(f)+fmt.Sprintf(", and %d more %s", n, messages.Are(n))))
		}
	}
	return operations
}

// Counted reports whether the cache shows all Machines that the sets report, as an update in place needs; other
// rollouts do not. A Machine that comes to be shown starts no pass.
func Counted(f Facts) bool {
	return !f.inPlace || !slices.ContainsFunc(f.All(), func(set *v1alpha1.MachineSet) bool { return int(set.Status.Replicas) > len(f.machines[set.Name]) })
}

// Moving reports whether Machines moved between sets by an update in place, which the replicas of the sets
// or their reports do not show yet. Then the numbers of the sets do not tell whether the update is over.
func Moving(f Facts) bool {
	return f.inPlace && (!Counted(f) || slices.ContainsFunc(f.Old, func(set *v1alpha1.MachineSet) bool { return inplace.Moved(f.machines[set.Name]) > 0 }))
}

// planCounts raises the replicas of sets to which Machines were moved, and lowers those of sets that
// create none and have fewer Machines. Neither creates or deletes any.
func planCounts(f Facts) []Operation {
	var operations []Operation
	for _, set := range f.All() {
		if !set.DeletionTimestamp.IsZero() {
			continue
		}
		desired, active := counts.Desired(set), inplace.Active(f.machines[set.Name])
		raised := min(active, desired+inplace.Moved(f.machines[set.Name]))
		if set == f.Current {
			raised = min(raised, reserve.Wanted(f.Deployment))
		}
		switch {
		case raised > desired:
			operations = append(operations, scaleTo(set, raised, messages.Machines(raised-desired)+" updated in place came to it"))
		case active < desired && inplace.CreatesNone(set):
			operations = append(operations, scaleTo(set, active, fmt.Sprintf("%d of its %s moved to another set, or %s gone", desired-active, messages.Machines(desired), messages.Are(desired-active))))
		}
	}
	return operations
}

// tooMany returns how many Machines the sets are to lose: those beyond the surge and, when the current set
// has all its Machines, all others.
func tooMany(f Facts) int32 {
	most := limit(f)
	if f.Current != nil && counts.Desired(f.Current) >= reserve.Wanted(f.Deployment) {
		most = reserve.Wanted(f.Deployment)
	}
	return counts.Clamp(counts.Total(f.All(), counts.Desired) - int64(most))
}

// selection returns the names of the Machines whose nodes are selected now.
func selection(f Facts) map[string]bool {
	if !f.inPlace || suspended(f) || inplace.Manual(f.Deployment) || f.Nodes == nil || f.Nodes.Stale || replaced(f) || tooMany(f) > 0 {
		return nil
	}
	return f.update().Selection()
}

// mostBlocked is how many Machines are named whose update is blocked.
const mostBlocked = 3

// answerWithin is how long the machine controller may take to look at a candidate. It may be restarted, or be
// waiting for its lease.
const answerWithin = time.Minute

// AnswerIn returns how long the machine controller still has to look at all candidates; 0 if it did, or is late.
func AnswerIn(f Facts) time.Duration {
	if f.Nodes == nil || f.Nodes.UnansweredSince.IsZero() {
		return 0
	}
	return max(0, f.Nodes.UnansweredSince.Add(answerWithin).Sub(f.Now))
}

// unanswered says that candidates wait for a machine controller in vain; empty if none does.
func unanswered(f Facts) string {
	if f.Nodes == nil || f.Nodes.UnansweredSince.IsZero() || AnswerIn(f) > 0 {
		return ""
	}
	waiting := slices.DeleteFunc(slices.Clone(f.Nodes.OfOld), func(n Node) bool { return !inplaceupdate.Unanswered(n.Machine, n.Node) })
	if len(waiting) == 0 {
		return ""
	}
	var names []string
	for _, n := range waiting[:min(len(waiting), mostBlocked)] {
		names = append(names, n.Machine.Name)
	}
	text := "no machine controller answers that the nodes of " + strings.Join(names, ", ")
	if more := len(waiting) - mostBlocked; more > 0 {
		text += fmt.Sprintf(" and %s more", messages.Machines(int32(more)))
	}
	return text + " are candidates: none runs, or its version does not update nodes in place"
}

// Blocked says what keeps an update in place from its end and does not go away by itself; empty if nothing
// does.
func Blocked(f Facts) string {
	if !f.inPlace || !MarksNodes(f) {
		return ""
	}
	manual := inplace.Manual(f.Deployment)
	why := f.update().Blocked(manual)
	silent := unanswered(f)
	if len(why) == 0 && silent == "" {
		return ""
	}
	said := slices.Clone(why[:min(len(why), mostBlocked)])
	if more := len(why) - mostBlocked; more > 0 {
		said = append(said, fmt.Sprintf("and %s more", messages.Machines(int32(more))))
	}
	if silent != "" {
		said = append([]string{silent}, said...)
	}
	text := strings.Join(said, "; ")
	if manual {
		text += ". Label the nodes to update with " + v1alpha1.LabelKeyNodeSelectedForUpdate + "=true"
	}
	return text + "."
}

// planTransfers moves the Machines whose nodes were updated to the current set.
func planTransfers(f Facts) []Operation {
	if !f.inPlace || suspended(f) || f.Nodes == nil {
		return nil
	}
	var operations []Operation
	for _, m := range f.update().Transfers() {
		operations = append(operations, Operation{Action: Transfer, Machine: m.Machine, From: m.Set, Set: f.Current, Reason: "its node was updated in place"})
	}
	return operations
}

// planSettling removes the label of moved Machines that their sets count.
func planSettling(f Facts) []Operation {
	if !f.inPlace || suspended(f) || f.Nodes == nil || f.Nodes.Stale {
		return nil
	}
	update := f.update()
	var operations []Operation
	for _, set := range f.All() {
		for _, machine := range update.Countable(set) {
			operations = append(operations, Operation{Action: Settle, Machine: machine, Set: set, Reason: "its set counts it"})
		}
	}
	return operations
}
