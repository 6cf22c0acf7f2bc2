package rollout

import (
	"cmp"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/counts"
	"github.com/millwright-dev/millwright/internal/pool/reserve"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// Plan returns the operations that bring the deployment closer to its spec, in order. Ownership, restores, rollbacks
// and live updates come first and end the plan, because the number of Machines depends on them. Operations after a
// Mark are carried out only if no Machine can be marked.
func Plan(r *Rollout) []Operation {
	if operations := planOwnership(r); len(operations) > 0 || r.AwaitsRestore() != "" {
		return operations
	}
	if operations := planRestored(r); len(operations) > 0 {
		return operations
	}
	if operations := planRollback(r); len(operations) > 0 {
		return operations
	}
	if operations := planLiveUpdate(r); len(operations) > 0 {
		return operations
	}
	return append(planMarks(r), planSets(r)...)
}

// planSets creates, scales and refreshes sets, and changes the nodes and Machines of a rollout.
func planSets(r *Rollout) []Operation {
	replicas := slices.DeleteFunc(planReplicas(r), func(op Operation) bool {
		return op.Action == Scale && op.Replicas < counts.Desired(op.Set) && slices.Contains(r.heldBack, op.Set)
	})
	excess := planReserve(r, replicas)
	for i := range replicas {
		replicas[i].Next = next(r, replicas[i], excess[replicas[i].Set])
	}
	operations := slices.Concat(planNodes(r), planTransfers(r), replicas)
	operations = append(operations, planRefresh(r, replicas, excess)...)
	return slices.Concat(operations, planSettling(r), planHistory(r))
}

// planReserve returns how many replicas of each set are excess replicas once the operations are carried out.
// The key nil stands for a new set.
func planReserve(r *Rollout, replicas []Operation) map[*v1alpha1.MachineSet]int32 {
	sets := reserve.Sets{Deployment: r.Deployment, Current: r.Current, Old: r.Old, Machines: r.Machines, Planned: map[*v1alpha1.MachineSet]int32{}}
	for _, op := range replicas {
		sets.Planned[op.Set] = op.Replicas
	}
	for _, n := range r.Named {
		if n.pending(r.Now) {
			sets.Named = append(sets.Named, n.Machine)
		}
	}
	return reserve.Plan(sets)
}

// next returns the set that an operation creates or scales, with the given number of excess replicas.
func next(r *Rollout, op Operation, excess int32) *v1alpha1.MachineSet {
	if op.Action == Create {
		set := r.NewSet(op.Replicas)
		reserve.Assign(set, r.Deployment, excess)
		return set
	}
	set := refreshed(r, op.Set, op.Replicas, excess)
	setReplicaAnnotations(set, r, cmp.Or(op.size, r.Desired))
	for _, key := range operational {
		if value, ok := r.Deployment.Annotations[key]; ok {
			metav1.SetMetaDataAnnotation(&set.ObjectMeta, key, value)
		}
	}
	return set
}

// planReplicas creates the current set and scales all of them.
func planReplicas(r *Rollout) []Operation {
	switch {
	case r.suspended: // the status reports the reason
		return planSuspended(r)
	case len(r.LiveUpdate.ToReplace()) > 0:
		return planReplacements(r)
	case r.replaced && !(r.Current != nil && r.reduced(r.Current)):
		return planCurrent(r)
	case r.Deployment.Spec.Strategy.Type == v1alpha1.RecreateMachineDeploymentStrategyType:
		return planRecreate(r)
	case r.inPlace:
		return planInPlace(r)
	default:
		return planRolling(r)
	}
}

// planOwnership adopts orphans and releases sets that no longer match.
func planOwnership(r *Rollout) []Operation {
	var operations []Operation
	selects := Selects(r.Deployment)
	for _, set := range r.sets {
		if set.DeletionTimestamp.IsZero() && !selects(set) {
			operations = append(operations, Operation{Action: Release, Set: set, Reason: "its labels no longer match the selector"})
		}
	}
	for _, set := range r.Orphans {
		operations = append(operations, Operation{Action: Adopt, Set: set, Reason: "it has no owner and its labels match the selector"})
	}
	return operations
}

// scaleTo scales a set.
func scaleTo(set *v1alpha1.MachineSet, replicas int32, reason string) Operation {
	return Operation{Action: Scale, Set: set, Replicas: replicas, Reason: reason}
}

// desired describes how many replicas the deployment should have.
func desired(r *Rollout) string {
	text := messages.Replicas(r.Deployment.Spec.Replicas) + " desired"
	if excess := reserve.Excess(r.Deployment); excess > 0 {
		text += fmt.Sprintf(", plus %d in excess", excess)
	}
	return text
}

// planCurrent gives all replicas to the current set.
func planCurrent(r *Rollout) []Operation {
	if r.Current == nil {
		return []Operation{{Action: Create, Replicas: r.Desired, Reason: "no machine set has this template yet"}}
	}
	if r.Current.Spec.Replicas == r.Desired {
		return nil
	}
	return []Operation{scaleTo(r.Current, r.Desired, desired(r))}
}
