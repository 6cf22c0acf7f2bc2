package rollout

import (
	"fmt"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/counts"
	"github.com/millwright-dev/millwright/internal/pool/deletion"
	"github.com/millwright-dev/millwright/internal/pool/revision"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// planClass gives Machines the class that the template names without replacing them. Nothing else is planned in a
// pass that does something for that.
func planLiveUpdate(r *Rollout) []Operation {
	var operations []Operation
	of := func(action Action, machines []*v1alpha1.Machine, why string) {
		for _, machine := range machines {
			operations = append(operations, Operation{Action: action, Machine: machine, Set: r.LiveUpdate.Set, Reason: why})
		}
	}
	of(ForgetUpdate, r.LiveUpdate.Forgotten(), "the template names its class again")
	of(AskUpdate, r.LiveUpdate.Unasked(), "the template names another class")
	of(FollowClass, r.LiveUpdate.Followers(), "its VM can be updated")
	if len(operations) == 0 && r.LiveUpdate.TakesOver() {
		operations = takeClass(r)
	}
	return operations
}

// takeClass gives the set of the Machines the class, and with it the next revision. A set without Machines that has
// the template goes first: there must be one only.
func takeClass(r *Rollout) []Operation {
	if r.Current != nil {
		return []Operation{{Action: Prune, Set: r.Current, Reason: fmt.Sprintf("machine set %s gets its template", r.LiveUpdate.Set.Name)}}
	}
	next := r.LiveUpdate.Set.DeepCopy()
	r.LiveUpdate.TakeOver(next)
	revision.Give(next, max(revision.Last(r.Old), revision.Followed(r.Deployment))+1)
	return []Operation{{Action: TakeClass, Set: r.LiveUpdate.Set, Next: next, Reason: r.LiveUpdate.Says()}}
}

// planRest replaces the Machines that cannot be updated: more are created first, as far as the surge allows, and then
// as many go as can be spared. The set deletes those that are retired before others.
func planRest(r *Rollout) []Operation {
	if !r.settled || int(r.LiveUpdate.Set.Status.Replicas) > len(r.LiveUpdate.Machines) {
		return nil
	}
	step := r.LiveUpdate.Next(r.Desired, r.surge, r.unavailable)
	var operations []Operation
	for _, machine := range step.Leaving {
		if !deletion.IsFirst(machine) {
			operations = append(operations, Operation{Action: Retire, Machine: machine, Set: r.LiveUpdate.Set, Reason: "its VM cannot be updated to the class"})
		}
	}
	if len(operations) > 0 || step.Replicas == counts.Desired(r.Current) {
		return operations
	}
	reason := fmt.Sprintf("%s cannot be updated to the class, and %s replaced", messages.Machines(len(r.LiveUpdate.Rest())), messages.Are(len(r.LiveUpdate.Rest())))
	return []Operation{scaleTo(r.Current, step.Replicas, reason)}
}
