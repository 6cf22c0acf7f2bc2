package rollout

import (
	"fmt"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/counts"
	"github.com/millwright-dev/millwright/internal/pool/deletion"
	"github.com/millwright-dev/millwright/internal/pool/revision"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// planLiveUpdate gives Machines the class that the template names without replacing them. If it returns
// operations, nothing else is planned in the pass.
func planLiveUpdate(r *Rollout) []Operation {
	var operations []Operation
	of := func(action Action, machines []*v1alpha1.Machine, why string) {
		for _, machine := range machines {
			operations = append(operations, Operation{Action: action, Machine: machine, Set: r.LiveUpdate.Set, Reason: why})
		}
	}
	of(ForgetUpdate, r.LiveUpdate.Obsolete(), "the template names its class again")
	of(AskUpdate, r.LiveUpdate.ToQuery(), "the template names another class")
	of(FollowClass, r.LiveUpdate.ToUpdate(), "its VM can be updated")
	if len(operations) == 0 && r.LiveUpdate.TakesOver() {
		operations = takeClass(r)
	}
	return operations
}

// takeClass gives the class, and with it the next revision, to the set with the Machines. A set without
// Machines that already has the template is deleted first, because only one set may have it.
func takeClass(r *Rollout) []Operation {
	if r.Current != nil {
		return []Operation{{Action: Prune, Set: r.Current, Reason: fmt.Sprintf("machine set %s takes over its template", r.LiveUpdate.Set.Name)}}
	}
	next := r.LiveUpdate.Set.DeepCopy()
	r.LiveUpdate.TakeOver(next)
	revision.Give(next, max(revision.Last(r.Old), revision.Followed(r.Deployment))+1)
	return []Operation{{Action: TakeClass, Set: r.LiveUpdate.Set, Next: next, Reason: r.LiveUpdate.Summary()}}
}

// planReplacements replaces the Machines that cannot be updated. It first creates more as far as the surge
// allows, then removes as many as availability allows. The set deletes retired Machines before others.
func planReplacements(r *Rollout) []Operation {
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
	reason := fmt.Sprintf("%s cannot be updated to the class and %s replaced", messages.Machines(len(r.LiveUpdate.ToReplace())), messages.Are(len(r.LiveUpdate.ToReplace())))
	return []Operation{scaleTo(r.Current, step.Replicas, reason)}
}
