package machineset

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/preservation"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// Reasons of the condition ReplicaFailure, as in MCM; FailedAdopt, FailedUpdate and
// InvalidSpec are ours.
const (
	reasonFailedCreate = "FailedCreate"
	reasonFailedDelete = "FailedDelete"
	reasonFailedAdopt  = "FailedAdopt"
	reasonFailedUpdate = "FailedUpdate"
	reasonInvalid      = "InvalidSpec"
)

// reasonOvershoot is the reason of the condition Frozen, as in MCM.
const reasonOvershoot = "OverShootingReplicaCount"

// mostFailed is how many failed Machines a status names, and longestFailed how many bytes it has
// of what is said of each. Thousands of Machines, or all that some providers say, would make the
// object too large to be stored.
const (
	mostFailed    = 100
	longestFailed = 1024
)

// nextStatus is the status that follows from the facts, from the operations that were
// carried out, and from a failure of one of them.
//
// Whoever plans with this status relies on two things. If its generation is the set's,
// then Replicas counts every Machine that exists, whether the cache shows it or not. And
// a Machine that is on its way out is not counted as ready or available, not even in the
// pass that deletes it. What may have been made or deleted, since the answer was lost, is
// taken for that.
func nextStatus(f facts, operations []operation, failure error) v1alpha1.MachineSetStatus {
	next := v1alpha1.MachineSetStatus{
		Conditions:         slices.Clone(f.set.Status.Conditions),
		LastOperation:      f.set.Status.LastOperation,
		ObservedGeneration: f.set.Generation,
		Selector:           metav1.FormatLabelSelector(f.set.Spec.Selector),

		Replicas: f.created + f.unknown, FullyLabeledReplicas: f.created,
	}
	if failure != nil {
		next.ObservedGeneration = f.set.Status.ObservedGeneration
	}
	leaving := map[*v1alpha1.Machine]bool{}
	for _, op := range only(operations, remove) {
		leaving[op.machine] = failure == nil || f.removed[op.machine.UID]
	}
	for _, machine := range f.owned {
		count(&next, machine, f)
		if active(machine) && !leaving[machine] {
			countUsable(&next, machine, f)
		}
	}
	next.FailedMachines = failedMachines(f)
	setCondition(&next, v1alpha1.MachineSetReplicaFailure, failureCondition(failure, f.now))
	setCondition(&next, v1alpha1.MachineSetFrozen, frozenCondition(f, operations))
	setCondition(&next, conditionOverlap, overlapCondition(f))
	return next
}

func count(next *v1alpha1.MachineSetStatus, machine *v1alpha1.Machine, f facts) {
	next.Replicas++
	phase := machine.Status.CurrentStatus.Phase
	next.FullyLabeledReplicas += one(contains(machine.Labels, f.set.Spec.Template.Labels))
	next.PreservedFailedReplicas += one(phase == v1alpha1.MachineFailed && preservation.Active(machine, f.now))
	next.AutoPreserveFailedMachineCount += one(machine.Annotations[v1alpha1.AnnotationKeyPreserve] == "auto-preserved")
}

// contains reports whether labels are among others.
func contains(all, some map[string]string) bool {
	for key, value := range some {
		if is, ok := all[key]; !ok || is != value {
			return false
		}
	}
	return true
}

func countUsable(next *v1alpha1.MachineSetStatus, machine *v1alpha1.Machine, f facts) {
	next.ReadyReplicas += one(machine.Status.CurrentStatus.Phase == v1alpha1.MachineRunning)
	next.AvailableReplicas += one(available(machine) && availableIn(machine, f) == 0)
}

func one(yes bool) int32 {
	if yes {
		return 1
	}
	return 0
}

// failedMachines names the Machines whose last operation failed, in the order of their
// names; nil if there are none.
func failedMachines(f facts) *[]v1alpha1.MachineSummary {
	var failed []v1alpha1.MachineSummary
	for _, machine := range f.owned {
		kept := machine.Status.CurrentStatus.Phase == v1alpha1.MachineFailed && preservation.Active(machine, f.now)
		if machine.Status.LastOperation.State != v1alpha1.MachineStateFailed || kept {
			continue
		}
		failed = append(failed, v1alpha1.MachineSummary{
			Name:          machine.Name,
			ProviderID:    machine.Spec.ProviderID,
			LastOperation: machine.Status.LastOperation,
			OwnerRef:      f.set.Name,
		})
	}
	if failed == nil {
		return nil
	}
	slices.SortFunc(failed, func(a, b v1alpha1.MachineSummary) int { return cmp.Compare(a.Name, b.Name) })
	more := len(failed) - mostFailed
	if more > 0 {
		failed = failed[:mostFailed]
	}
	for i := range failed {
		last := &failed[i].LastOperation
		last.Description = messages.Shorten(last.Description, longestFailed)
	}
	if more > 0 {
		failed[mostFailed-1].LastOperation.Description += fmt.Sprintf(" (and %d more failed machines)", more)
	}
	return &failed
}

func failureCondition(failure error, now time.Time) *v1alpha1.MachineSetCondition {
	if failure == nil {
		return nil
	}
	reason := reasonFailedDelete
	switch {
	case errors.Is(failure, errCreate):
		reason = reasonFailedCreate
	case errors.Is(failure, errOwner):
		reason = reasonFailedAdopt
	case errors.Is(failure, errUpdate):
		reason = reasonFailedUpdate
	}
	return isTrue(v1alpha1.MachineSetReplicaFailure, reason, failure.Error(), now)
}

// frozenCondition says of a frozen set why it is, and goes on to say what was true then.
func frozenCondition(f facts, operations []operation) *v1alpha1.MachineSetCondition {
	if !frozen(f.set) {
		return nil
	}
	if at := condition(f.set.Status.Conditions, v1alpha1.MachineSetFrozen); at >= 0 {
		return f.set.Status.Conditions[at].DeepCopy()
	}
	message := "it creates no machines as long as its label " + v1alpha1.LabelKeyFreeze + " is True"
	for _, op := range operations {
		if op.action == freeze {
			message = op.reason
		}
	}
	return isTrue(v1alpha1.MachineSetFrozen, reasonOvershoot, message, f.now)
}

func isTrue(kind v1alpha1.MachineSetConditionType, reason, message string, now time.Time) *v1alpha1.MachineSetCondition {
	return &v1alpha1.MachineSetCondition{
		Type: kind, Status: v1alpha1.ConditionTrue, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(now),
	}
}

// condition is where a condition is in a list, -1 if it is not.
func condition(conditions []v1alpha1.MachineSetCondition, kind v1alpha1.MachineSetConditionType) int {
	return slices.IndexFunc(conditions, func(c v1alpha1.MachineSetCondition) bool { return c.Type == kind })
}

// invalidStatus is the status of a set that cannot be worked on. Its counters stay.
func invalidStatus(set *v1alpha1.MachineSet, sentence string, now time.Time) v1alpha1.MachineSetStatus {
	next := *set.Status.DeepCopy()
	setCondition(&next, v1alpha1.MachineSetReplicaFailure, isTrue(v1alpha1.MachineSetReplicaFailure, reasonInvalid, sentence, now))
	return next
}

// setCondition puts a condition in, or takes it out if it is nil. One that was there
// already keeps the time of its transition.
func setCondition(status *v1alpha1.MachineSetStatus, kind v1alpha1.MachineSetConditionType, wanted *v1alpha1.MachineSetCondition) {
	at := condition(status.Conditions, kind)
	switch {
	case wanted == nil && at >= 0:
		status.Conditions = slices.Delete(status.Conditions, at, at+1)
	case wanted == nil:
	case at < 0:
		status.Conditions = append(status.Conditions, *wanted)
	default:
		if status.Conditions[at].Status == wanted.Status {
			wanted.LastTransitionTime = status.Conditions[at].LastTransitionTime
		}
		status.Conditions[at] = *wanted
	}
}

// writeStatus writes the status if it differs from what is stored.
func (c *Controller) writeStatus(ctx context.Context, set *v1alpha1.MachineSet, next v1alpha1.MachineSetStatus) error {
	stored := set.Status
	stored.Selector = next.Selector // pruned under MCM's CRDs, so its absence must not cause a write
	if equality.Semantic.DeepEqual(stored, next) {
		return nil
	}
	before := set.DeepCopy()
	next.LastOperation.LastUpdateTime = metav1.NewTime(c.Clock.Now())
	set.Status = next
	if err := c.written.PatchStatus(ctx, c.Client, set, before); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("status of machine set %s: %w", set.Name, err))
	}
	c.complain(set, before)
	return nil
}

// complain says once what is wrong with a set, or with the sets beside it.
func (c *Controller) complain(set, before *v1alpha1.MachineSet) {
	for _, is := range set.Status.Conditions {
		said := slices.ContainsFunc(before.Status.Conditions, func(was v1alpha1.MachineSetCondition) bool {
			return was.Reason == is.Reason && was.Message == is.Message
		})
		if !said && (is.Reason == reasonInvalid || is.Reason == string(conditionOverlap)) {
			c.Events.Event(set, corev1.EventTypeWarning, is.Reason, is.Message)
		}
	}
}
