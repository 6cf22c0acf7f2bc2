package planner

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// Action is what an operation does.
type Action string

// The actions.
const (
	Create  Action = "create"
	Scale   Action = "scale"
	Adopt   Action = "adopt"
	Release Action = "release"
	// Refresh brings what a set takes over from the deployment up to date.
	Refresh Action = "refresh"
	// Prune deletes an old set beyond the history limit.
	Prune Action = "prune"
	// Mark tells a set which Machine to delete first.
	Mark Action = "mark"
	// PatchNodes changes nodes.
	PatchNodes Action = "patch nodes"
	// RollBack gives the deployment the template of an old set.
	RollBack Action = "roll back"
	// Refuse answers a rollback that is not possible.
	Refuse Action = "refuse"
)

// Operation is one thing to do, and why.
type Operation struct {
	Action Action
	// Set that it is about; nil for Create.
	Set *v1alpha1.MachineSet
	// Next is the set to be written by Create, Scale and Refresh.
	Next *v1alpha1.MachineSet
	// Replicas that Create and Scale give the set.
	Replicas int32
	// Machine to be marked, and since when it was named.
	Machine *v1alpha1.Machine
	Since   string
	// Nodes to be patched.
	Nodes []NodeChange
	// Deployment to be written by RollBack and Refuse.
	Deployment *v1alpha1.MachineDeployment
	// Reason is a sentence for events and logs.
	Reason string
	// Topic is the reason of the event, where it does not follow from the action. Nodes without a
	// topic are only logged.
	Topic string

	// size of the deployment that a set is scaled for; 0 is its replicas.
	size int32
}

// Ends reports whether nothing follows the operation in a pass but others of the same action: the
// caches first have to show what it did.
func (op Operation) Ends() bool {
	return slices.Contains([]Action{Adopt, Release, Mark, RollBack, Refuse}, op.Action)
}

// Plan returns what brings the deployment closer to its goal, in order. Before anything is counted,
// it has to be clear which sets are the deployment's, which template is wanted, and which Machines
// go first. What follows the marks is for the case that none of them can be made.
func Plan(f Facts) []Operation {
	for _, first := range []func(Facts) []Operation{planOwnership, planRollback} {
		if operations := first(f); len(operations) > 0 {
			return operations
		}
	}
	marks := planMarks(f)
	for _, mark := range marks {
		f.heldBack = append(f.heldBack, mark.Set)
	}
	return append(marks, planSets(f)...)
}

// planSets scales and updates sets and their nodes.
func planSets(f Facts) []Operation {
	replicas := planReplicas(f)
	if len(f.heldBack) > 0 {
		replicas = slices.DeleteFunc(replicas, func(op Operation) bool {
			return op.Action == Scale && op.Replicas < Desired(op.Set) && slices.Contains(f.heldBack, op.Set)
		})
	}
	for i := range replicas {
		replicas[i].Next = next(f, replicas[i])
	}
	operations := append(planNodes(f), replicas...)
	operations = append(operations, planRefresh(f, replicas)...)
	return append(operations, planHistory(f)...)
}

// next returns the set as an operation creates or scales it.
func next(f Facts, op Operation) *v1alpha1.MachineSet {
	if op.Action == Create {
		return NewSet(f, op.Replicas)
	}
	set := refreshed(f, op.Set, false)
	set.Spec.Replicas = op.Replicas
	setReplicaAnnotations(set, f, cmp.Or(op.size, f.Deployment.Spec.Replicas))
	copyOperational(set, f.Deployment)
	return set
}

// planReplicas creates the current set and scales all of them.
func planReplicas(f Facts) []Operation {
	switch {
	case suspended(f): // the status says why
		return planSuspended(f)
	case replaced(f) && !(f.Current != nil && reduced(f, f.Current)):
		return planCurrent(f)
	case f.Deployment.Spec.Strategy.Type == v1alpha1.RecreateMachineDeploymentStrategyType:
		return planRecreate(f)
	default:
		return planRolling(f)
	}
}

// suspended reports whether no Machine is replaced now.
func suspended(f Facts) bool { return f.Deployment.Spec.Paused || Unsupported(f) }

// Unsupported reports whether Machines would have to be updated in place. They stay as they are then:
// not replacing them is what the strategy is for. Those of a set being deleted go all the same.
func Unsupported(f Facts) bool {
	return f.Deployment.Spec.Strategy.Type == v1alpha1.InPlaceUpdateMachineDeploymentStrategyType && !WasComplete(f) &&
		slices.ContainsFunc(f.Old, func(set *v1alpha1.MachineSet) bool { return set.DeletionTimestamp.IsZero() && f.occupied(set) })
}

// planOwnership adopts orphans, and releases sets that do not match any more.
func planOwnership(f Facts) []Operation {
	var operations []Operation
	selector := Selector(f.Deployment)
	for _, set := range f.All() {
		if set.DeletionTimestamp.IsZero() && !Matches(selector, set) {
			operations = append(operations, Operation{Action: Release, Set: set, Reason: "its labels do not match the selector any more"})
		}
	}
	for _, set := range f.Orphans {
		operations = append(operations, Operation{Action: Adopt, Set: set, Reason: "it has no owner and its labels match the selector"})
	}
	return operations
}

// scaleTo returns the operation that scales a set.
func scaleTo(set *v1alpha1.MachineSet, replicas int32, reason string) Operation {
	return Operation{Action: Scale, Set: set, Replicas: replicas, Reason: reason}
}

// wants begins the reason of an operation.
func wants(f Facts) string {
	return "the deployment wants " + messages.Machines(f.Deployment.Spec.Replicas)
}

// planCurrent gives the current set all Machines.
func planCurrent(f Facts) []Operation {
	wanted := f.Deployment.Spec.Replicas
	if f.Current == nil {
		return []Operation{{Action: Create, Replicas: wanted, Reason: "there is no machine set for this template yet"}}
	}
	if f.Current.Spec.Replicas == wanted {
		return nil
	}
	return []Operation{scaleTo(f.Current, wanted, wants(f))}
}

// reduced reports whether a set has to grow though nobody scaled the deployment since the set was
// last scaled. So a rollout took Machines from it, which may still exist: the bounds of a rollout
// apply.
func reduced(f Facts, set *v1alpha1.MachineSet) bool {
	if !f.rolling || Desired(set) >= f.Deployment.Spec.Replicas {
		return false
	}
	return set.Annotations[v1alpha1.AnnotationKeyDesiredReplicas] == strconv.Itoa(int(f.Deployment.Spec.Replicas))
}

// planRecreate removes all old Machines before the first new one is created.
func planRecreate(f Facts) []Operation {
	var operations []Operation
	for _, set := range f.Old {
		if Desired(set) > 0 {
			operations = append(operations, scaleTo(set, 0, "the strategy Recreate removes all old machines first"))
		}
	}
	return operations
}
