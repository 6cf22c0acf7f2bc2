package rollout

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/counts"
	"github.com/millwright-dev/millwright/internal/pool/reserve"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// Plan returns what brings the deployment closer to its goal, in order. Before anything is counted,
// it has to be clear which sets are the deployment's, which template is wanted, and which Machines
// are deleted first. What follows the marks is only carried out if no mark can be made.
func Plan(f Facts) []Operation {
	if operations := planOwnership(f); len(operations) > 0 {
		return operations
	}
	if operations := planRollback(f); len(operations) > 0 {
		return operations
	}
	if operations := planClass(f); len(operations) > 0 {
		return operations
	}
	marks := planMarks(f)
	for _, mark := range marks {
		f.heldBack = append(f.heldBack, mark.Set)
	}
	return append(marks, planSets(f)...)
}

func planSets(f Facts) []Operation {
	replicas := planReplicas(f)
	replicas = slices.DeleteFunc(replicas, func(op Operation) bool {
		return op.Action == Scale && op.Replicas < counts.Desired(op.Set) && slices.Contains(f.heldBack, op.Set)
	})
	sets := reserve.Sets{Deployment: f.Deployment, Current: f.Current, Old: f.Old, Machines: f.machines, Planned: map[*v1alpha1.MachineSet]int32{}}
	for _, op := range replicas {
		sets.Planned[op.Set] = op.Replicas
	}
	for _, n := range f.Named {
		if n.pending(f.Now) {
			sets.Named = append(sets.Named, n.Machine)
		}
	}
	f.excess = reserve.Plan(sets)
	for i := range replicas {
		replicas[i].Next = next(f, replicas[i])
	}
	operations := slices.Concat(planNodes(f), planTransfers(f), replicas)
	operations = append(operations, planRefresh(f, replicas)...)
	return slices.Concat(operations, planSettling(f), planHistory(f))
}

// next returns the set as an operation creates or scales it.
func next(f Facts, op Operation) *v1alpha1.MachineSet {
	if op.Action == Create {
		return NewSet(f, op.Replicas)
	}
	set := refreshed(f, op.Set, op.Replicas, false)
	setReplicaAnnotations(set, f, cmp.Or(op.size, reserve.Wanted(f.Deployment)))
	for _, key := range operational {
		if value, ok := f.Deployment.Annotations[key]; ok {
			metav1.SetMetaDataAnnotation(&set.ObjectMeta, key, value)
		}
	}
	return set
}

// planReplicas creates the current set and scales all of them.
func planReplicas(f Facts) []Operation {
	switch {
	case suspended(f): // the status says why
		return planSuspended(f)
	case len(f.Class.Rest()) > 0:
		return planRest(f)
	case replaced(f) && !(f.Current != nil && reduced(f, f.Current)):
		return planCurrent(f)
	case f.Deployment.Spec.Strategy.Type == v1alpha1.RecreateMachineDeploymentStrategyType:
		return planRecreate(f)
	case f.inPlace:
		return planInPlace(f)
	default:
		return planRolling(f)
	}
}

// suspended reports whether no Machine is replaced now.
func suspended(f Facts) bool {
	return f.Deployment.Spec.Paused || Unsupported(f) || f.Class.Holds()
}

// Unsupported reports whether Machines would have to be updated in place, and cannot. They stay as they
// are, since the strategy is not to replace them, unless their set is being deleted.
func Unsupported(f Facts) bool {
	return !f.inPlace && f.Deployment.Spec.Strategy.Type == v1alpha1.InPlaceUpdateMachineDeploymentStrategyType && !WasComplete(f) &&
		slices.ContainsFunc(f.Old, func(set *v1alpha1.MachineSet) bool { return set.DeletionTimestamp.IsZero() && f.occupied(set) })
}

// planOwnership adopts orphans, and releases sets that do not match any more.
func planOwnership(f Facts) []Operation {
	var operations []Operation
	selects := Selects(f.Deployment)
	for _, set := range f.All() {
		if set.DeletionTimestamp.IsZero() && !selects(set) {
			operations = append(operations, Operation{Action: Release, Set: set, Reason: "its labels do not match the selector any more"})
		}
	}
	for _, set := range f.Orphans {
		operations = append(operations, Operation{Action: Adopt, Set: set, Reason: "it has no owner and its labels match the selector"})
	}
	return operations
}

func scaleTo(set *v1alpha1.MachineSet, replicas int32, reason string) Operation {
	return Operation{Action: Scale, Set: set, Replicas: replicas, Reason: reason}
}

func wants(f Facts) string {
	text := "the deployment wants " + messages.Machines(f.Deployment.Spec.Replicas)
	if excess := reserve.Excess(f.Deployment); excess > 0 {
		text += fmt.Sprintf(" and %d in excess", excess)
	}
	return text
}

func planCurrent(f Facts) []Operation {
	wanted := reserve.Wanted(f.Deployment)
	if f.Current == nil {
		return []Operation{{Action: Create, Replicas: wanted, Reason: "there is no machine set for this template yet"}}
	}
	if f.Current.Spec.Replicas == wanted {
		return nil
	}
	return []Operation{scaleTo(f.Current, wanted, wants(f))}
}

// reduced reports whether a set has to grow although the deployment was not scaled since the set was.
// Then a rollout took Machines from it, which may still exist, so the bounds of a rollout apply.
func reduced(f Facts, set *v1alpha1.MachineSet) bool {
	if !f.rolling && !f.inPlace || counts.Desired(set) >= reserve.Wanted(f.Deployment) {
		return false
	}
	return set.Annotations[v1alpha1.AnnotationKeyDesiredReplicas] == strconv.Itoa(int(reserve.Wanted(f.Deployment)))
}

// planRecreate removes all old Machines before the first new one is created.
func planRecreate(f Facts) []Operation {
	var operations []Operation
	for _, set := range f.Old {
		if counts.Desired(set) > 0 {
			operations = append(operations, scaleTo(set, 0, "the strategy Recreate removes all old machines first"))
		}
	}
	return operations
}

// planSuspended only scales. The sets of a rollout that had begun are scaled together.
func planSuspended(f Facts) []Operation {
	used := inUse(f)
	if len(used) == 0 {
		used = latest(f)
	}
	several := len(used) > 1 && resized(f) && allSettled(f)
	switch {
	case several && excess(f) > 0:
		return planScaleDown(f)
	case several && begun(f):
		return grow(f)
	case several:
		return planScaleUp(f)
	case len(used) != 1:
		return nil
	}
	replicas := reachable(f, used[0])
	if replicas == used[0].Spec.Replicas {
		return nil
	}
	reason := "the deployment was scaled, and its template is not rolled out"
	if f.Deployment.Spec.Paused {
		reason = "the paused deployment was scaled"
	}
	return []Operation{scaleTo(used[0], replicas, reason)}
}

// reachable returns how many replicas the only set in use may have now: those of the deployment, or
// fewer while Machines that a rollout took from other sets may exist.
func reachable(f Facts, set *v1alpha1.MachineSet) int32 {
	wanted := reserve.Wanted(f.Deployment)
	bounded := f.rolling || f.inPlace || Unsupported(f)
	others := slices.ContainsFunc(f.All(), func(other *v1alpha1.MachineSet) bool { return other != set && f.occupied(other) })
	if !bounded || counts.Desired(set) >= wanted || !others && !reduced(f, set) {
		return wanted
	}
	return min(wanted, counts.Desired(set)+room(f))
}

// latest returns the set by which a deployment without Machines is scaled up: the current or else the
// newest, as in MCM. Machines of sets being deleted have to be gone first.
func latest(f Facts) []*v1alpha1.MachineSet {
	if slices.ContainsFunc(f.Old, func(set *v1alpha1.MachineSet) bool { return !set.DeletionTimestamp.IsZero() && f.occupied(set) }) {
		return nil
	}
	staying := slices.DeleteFunc(f.All(), func(set *v1alpha1.MachineSet) bool { return !set.DeletionTimestamp.IsZero() })
	return staying[max(0, len(staying)-1):]
}

// postponed reports whether a suspended deployment was scaled up, and some of its new Machines wait
// until others are gone. Until then a set in use keeps the annotation of the former size as a record.
func postponed(f Facts) bool { return suspended(f) && resized(f) && lacking(f) > room(f) }
