package rollout

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/counts"
	"github.com/millwright-dev/millwright/internal/pool/inplaceupdate"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// planInPlace has the replicas of the sets follow the Machines that are moved or gone, takes what is too
// many, and creates what is missing, and the surge, in the current set. Old sets create nothing.
func planInPlace(r *Rollout) []Operation {
	if !r.settled || !r.Shown {
		return nil
	}
	if operations := planCounts(r); len(operations) > 0 {
		return operations
	}
	switch {
	case tooMany(r) == 0:
		return grow(r)
	case r.Nodes != nil && r.Nodes.Stale: // it is not known which Machines are being updated
		return nil
	}
	taken := r.surplus(tooMany(r))
	var operations []Operation
	for _, set := range r.sets {
		if n := taken[set]; n > 0 {
			operations = append(operations, scaleTo(set, counts.Desired(set)-n, wants(r)+fmt.Sprintf(", and %d more %s", n, messages.Are(n))))
		}
	}
	return operations
}

// planCounts raises the replicas of sets to which Machines were moved, and lowers those of sets that
// create none and have fewer Machines. Neither creates or deletes any.
func planCounts(r *Rollout) []Operation {
	var operations []Operation
	for _, set := range r.sets {
		if !set.DeletionTimestamp.IsZero() {
			continue
		}
		desired, active := counts.Desired(set), r.active(set)
		raised := min(active, desired+r.moved(set))
		if set == r.Current {
			raised = min(raised, r.Desired)
		}
		switch {
		case raised > desired:
			operations = append(operations, scaleTo(set, raised, messages.Machines(raised-desired)+" updated in place came to it"))
		case active < desired && inplaceupdate.CreatesNone(set):
			operations = append(operations, scaleTo(set, active, fmt.Sprintf("%d of its %s moved to another set, or %s gone", desired-active, messages.Machines(desired), messages.Are(desired-active))))
		}
	}
	return operations
}

// tooMany returns how many Machines the sets are to lose: those beyond the surge and, when the current set
// has all its Machines, all others.
func tooMany(r *Rollout) int32 {
	most := r.limit
	if r.Current != nil && counts.Desired(r.Current) >= r.Desired {
		most = r.Desired
	}
	return counts.Clamp(counts.Total(r.sets, counts.Desired) - int64(most))
}

// selection returns the names of the Machines whose nodes are selected now.
func (r *Rollout) selection() map[string]bool {
	if !r.inPlace || r.suspended || inplaceupdate.Manual(r.Deployment) || r.Nodes == nil || r.Nodes.Stale || r.replaced || tooMany(r) > 0 {
		return nil
	}
	return r.selectable()
}

// mostBlocked is how many Machines are named whose update is blocked.
const mostBlocked = 3

// answerWithin is how long the machine controller may take to look at a candidate. It may be restarted, or be
// waiting for its lease.
const answerWithin = time.Minute

// AnswerIn returns how long the machine controller still has to look at all candidates; 0 if it did, or is late.
func (r *Rollout) AnswerIn() time.Duration {
	if r.Nodes == nil || r.Nodes.UnansweredSince.IsZero() {
		return 0
	}
	return max(0, r.Nodes.UnansweredSince.Add(answerWithin).Sub(r.Now))
}

// unanswered says that candidates wait for a machine controller in vain; empty if none does.
func unanswered(r *Rollout) string {
	if r.Nodes == nil || r.Nodes.UnansweredSince.IsZero() || r.AnswerIn() > 0 {
		return ""
	}
	waiting := slices.DeleteFunc(slices.Clone(r.Nodes.OfOld), func(n Node) bool { return !inplaceupdate.Unanswered(n.Machine, n.Node) })
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
func (r *Rollout) Blocked() string {
	if !r.inPlace || !r.MarksNodes {
		return ""
	}
	manual := inplaceupdate.Manual(r.Deployment)
	why := r.blocked(manual)
	silent := unanswered(r)
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
func planTransfers(r *Rollout) []Operation {
	if !r.inPlace || r.suspended || r.Nodes == nil {
		return nil
	}
	var operations []Operation
	for _, m := range r.transfers() {
		operations = append(operations, Operation{Action: Transfer, Machine: m.Machine, From: m.Set, Set: r.Current, Reason: "its node was updated in place"})
	}
	return operations
}

// planSettling removes the label of moved Machines that their sets count.
func planSettling(r *Rollout) []Operation {
	if !r.inPlace || r.suspended || r.Nodes == nil || r.Nodes.Stale {
		return nil
	}
	var operations []Operation
	for _, set := range r.sets {
		for _, machine := range r.countable(set) {
			operations = append(operations, Operation{Action: Settle, Machine: machine, Set: set, Reason: "its set counts it"})
		}
	}
	return operations
}
