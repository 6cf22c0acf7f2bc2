package rollout

import (
	"fmt"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/classchange"
	"github.com/millwright-dev/millwright/internal/pool/counts"
	"github.com/millwright-dev/millwright/internal/pool/reserve"
	"github.com/millwright-dev/millwright/internal/pool/revision"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// planClass gives Machines the class that the template names without replacing them. Nothing else is planned in a
// pass that does something for that.
func planClass(f Facts) []Operation {
	var operations []Operation
	of := func(action Action, machines []*v1alpha1.Machine, why string) {
		for _, machine := range machines {
			operations = append(operations, Operation{Action: action, Machine: machine, Set: f.Class.Set, Reason: why})
		}
	}
	of(ForgetUpdate, f.Class.Forgotten(), "the template names its class again")
	of(AskUpdate, f.Class.Unasked(), "the template names another class")
	of(FollowClass, f.Class.Followers(), "its VM can be updated")
	if len(operations) == 0 && f.Class.TakesOver() {
		operations = takeClass(f)
	}
	return operations
}

// takeClass gives the set of the Machines the class, and with it the next revision. A set without Machines that has
// the template goes first: there must be one only.
func takeClass(f Facts) []Operation {
	if f.Current != nil {
		return []Operation{{Action: Prune, Set: f.Current, Reason: fmt.Sprintf("machine set %s gets its template", f.Class.Set.Name)}}
	}
	next := f.Class.Set.DeepCopy()
	f.Class.TakeOver(next)
	revision.Give(next, max(revision.Last(f.Old), revision.Followed(f.Deployment))+1)
	return []Operation{{Action: TakeClass, Set: f.Class.Set, Next: next, Reason: f.Class.Says()}}
}

// planRest replaces the Machines that cannot be updated: more are created first, as far as the surge allows, and then
// as many go as can be spared. The set deletes those that are retired before others.
func planRest(f Facts) []Operation {
	if !allSettled(f) || int(f.Class.Set.Status.Replicas) > len(f.Class.Machines) {
		return nil
	}
	step := f.Class.Next(reserve.Wanted(f.Deployment), f.surge, f.unavailable)
	var operations []Operation
	for _, machine := range step.Leaving {
		if !classchange.Retired(machine) {
			operations = append(operations, Operation{Action: Retire, Machine: machine, Set: f.Class.Set, Reason: "its VM cannot be updated to the class"})
		}
	}
	if len(operations) > 0 || step.Replicas == counts.Desired(f.Current) {
		return operations
	}
	reason := fmt.Sprintf("%s cannot be updated to the class, and %s replaced", messages.Machines(len(f.Class.Rest())), messages.Are(len(f.Class.Rest())))
	return []Operation{scaleTo(f.Current, step.Replicas, reason)}
}
