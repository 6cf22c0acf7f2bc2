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

// planInPlace adjusts the sets' replicas to Machines that were moved or deleted, removes surplus Machines, and
// creates missing and surge Machines in the current set. Old sets create no Machines.
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
	case r.Nodes != nil && r.Nodes.Stale: // unknown which Machines are being updated
		return nil
	}
	taken := r.surplus(tooMany(r))
	var operations []Operation
	for _, set := range r.sets {
		if n := taken[set]; n > 0 {
			operations = append(operations, scaleTo(set, counts.Desired(set)-n, fmt.Sprintf("%s; removing %s beyond that", desired(r), messages.Machines(n))))
		}
	}
	return operations
}

// planCounts raises the replicas of sets to which Machines were moved, and lowers the replicas of sets that
// have fewer Machines and create none. No Machines are created or deleted as a result.
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
			operations = append(operations, scaleTo(set, raised, messages.Machines(raised-desired)+" moved to it after an in-place update"))
		case active < desired && inplaceupdate.CreatesNone(set):
			operations = append(operations, scaleTo(set, active, fmt.Sprintf("%d of its %s moved to another machine set or %s gone", desired-active, messages.Machines(desired), messages.Are(desired-active))))
		}
	}
	return operations
}

// tooMany returns how many Machines the sets must lose: those beyond the surge, or those beyond the desired
// number if the current set has all its Machines.
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

// maxBlockedNames is how many Machines with a blocked update a message names.
const maxBlockedNames = 3

// responseTimeout is how long the machine controller may take to respond to a candidate. It may be restarting
// or waiting for its lease.
const responseTimeout = time.Minute

// ResponseDeadlineIn returns how long the machine controller may still take to respond to all candidates. It
// returns 0 if it has responded or is late.
func (r *Rollout) ResponseDeadlineIn() time.Duration {
	if r.Nodes == nil || r.Nodes.AwaitingSince.IsZero() {
		return 0
	}
	return max(0, r.Nodes.AwaitingSince.Add(responseTimeout).Sub(r.Now))
}

// unanswered returns a message about candidates to which no machine controller responded in time, or an empty
// string if there are none.
func unanswered(r *Rollout) string {
	if r.Nodes == nil || r.Nodes.AwaitingSince.IsZero() || r.ResponseDeadlineIn() > 0 {
		return ""
	}
	waiting := slices.DeleteFunc(slices.Clone(r.Nodes.OfOld), func(n Node) bool { return !inplaceupdate.Unanswered(n.Machine, n.Node) })
	if len(waiting) == 0 {
		return ""
	}
	var names []string
	for _, n := range waiting[:min(len(waiting), maxBlockedNames)] {
		names = append(names, n.Machine.Name)
	}
	text := "no machine controller has responded to the in-place update of " + strings.Join(names, ", ")
	if more := len(waiting) - maxBlockedNames; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text + "; check that one is running and that its version supports in-place updates"
}

// Blocked returns what prevents an in-place update from completing and needs intervention. It returns an empty
// string if nothing does.
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
	listed := slices.Clone(why[:min(len(why), maxBlockedNames)])
	if more := len(why) - maxBlockedNames; more > 0 {
		listed = append(listed, fmt.Sprintf("and %d more", more))
	}
	if silent != "" {
		listed = append([]string{silent}, listed...)
	}
	text := strings.Join(listed, "; ")
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

// planSettling removes the label of moved Machines once their sets count them.
func planSettling(r *Rollout) []Operation {
	if !r.inPlace || r.suspended || r.Nodes == nil || r.Nodes.Stale {
		return nil
	}
	var operations []Operation
	for _, set := range r.sets {
		for _, machine := range r.countable(set) {
			operations = append(operations, Operation{Action: Settle, Machine: machine, Set: set, Reason: "its machine set counts it"})
		}
	}
	return operations
}
