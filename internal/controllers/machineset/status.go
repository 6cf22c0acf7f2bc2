package machineset

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/preservation"
	"github.com/millwright-dev/millwright/internal/pool/budget"
	"github.com/millwright-dev/millwright/internal/pool/counts"
	"github.com/millwright-dev/millwright/internal/pool/scale"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
	"github.com/millwright-dev/millwright/internal/reconcile/events"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

const (
	// maxFailed is the number of failed Machines in a status, and maxFailedDescription is the length of each
	// description in bytes. An object that is too large cannot be stored.
	maxFailed            = 100
	maxFailedDescription = 1024
	// maxNamed is the number of overlapping sets that a condition names. The condition does not contain the
	// total number, since each new set would change the conditions of all others.
	maxNamed = 3
)

// nextStatus returns the status that follows from the facts and from the outcome of a plan.
//
// The deployment controller relies on two properties. If the observed generation is the set's, Replicas includes
// every existing Machine, even if the cache does not contain it. A Machine that is being deleted does not count as
// ready or available, not even in the pass that deletes it. If the response to a creation or deletion was lost, it
// counts as successful.
func nextStatus(f scale.Facts, done *outcome) v1alpha1.MachineSetStatus {
	next := v1alpha1.MachineSetStatus{
		Conditions:         slices.Clone(f.Set.Status.Conditions),
		LastOperation:      f.Set.Status.LastOperation,
		ObservedGeneration: f.Set.Generation,
		Selector:           metav1.FormatLabelSelector(f.Set.Spec.Selector),

		Replicas: done.created + done.unknown, FullyLabeledReplicas: done.created,
	}
	if done.failure != nil {
		next.ObservedGeneration = f.Set.Status.ObservedGeneration
	}
	for _, machine := range f.Owned {
		count(&next, machine, f, counts.Active(machine) && !done.leaving[machine.UID])
	}
	next.FailedMachines = failedMachines(f)
	setCondition(&next, v1alpha1.MachineSetReplicaFailure, failureCondition(f, done.failure))
	setCondition(&next, v1alpha1.MachineSetFrozen, frozenCondition(f, done))
	setCondition(&next, v1alpha1.MachineSetSelectorOverlap, overlapCondition(f))
	return next
}

// count adds a Machine to the numbers of the status.
func count(next *v1alpha1.MachineSetStatus, machine *v1alpha1.Machine, f scale.Facts, stays bool) {
	next.Replicas++
	phase := machine.Status.CurrentStatus.Phase
	next.FullyLabeledReplicas += one(scale.Contains(machine.Labels, f.Set.Spec.Template.Labels))
	next.PreservedFailedReplicas += one(preservedFailed(machine, f))
	next.AutoPreserveFailedMachineCount += one(machine.Annotations[v1alpha1.AnnotationKeyPreserve] == preservation.AutoPreserved)
	next.ReadyReplicas += one(stays && phase == v1alpha1.MachineRunning)
	next.AvailableReplicas += one(stays && counts.Usable(machine) && scale.AvailableIn(machine, f) == 0)
}

func preservedFailed(machine *v1alpha1.Machine, f scale.Facts) bool {
	return machine.Status.CurrentStatus.Phase == v1alpha1.MachineFailed && preservation.Active(machine, f.Now)
}

func one(yes bool) int32 {
	if yes {
		return 1
	}
	return 0
}

// failedMachines returns the Machines whose last operation failed, sorted by name, or nil if there are none.
func failedMachines(f scale.Facts) *[]v1alpha1.MachineSummary {
	var failed []v1alpha1.MachineSummary
	for _, machine := range f.Owned {
		if last := machine.Status.LastOperation; last.State == v1alpha1.MachineStateFailed && !preservedFailed(machine, f) {
			failed = append(failed, v1alpha1.MachineSummary{Name: machine.Name, ProviderID: machine.Spec.ProviderID, LastOperation: last, OwnerRef: f.Set.Name})
		}
	}
	if failed == nil {
		return nil
	}
	slices.SortFunc(failed, func(a, b v1alpha1.MachineSummary) int { return cmp.Compare(a.Name, b.Name) })
	more := len(failed) - maxFailed
	failed = failed[:min(len(failed), maxFailed)]
	for i := range failed {
		last := &failed[i].LastOperation
		last.Description = messages.Shorten(last.Description, maxFailedDescription)
	}
	if more > 0 {
		failed[maxFailed-1].LastOperation.Description += fmt.Sprintf(" (and %d more failed machines)", more)
	}
	return &failed
}

func failureCondition(f scale.Facts, failure error) *v1alpha1.MachineSetCondition {
	if failure == nil {
		return nil
	}
	reason := v1alpha1.MachineSetReasonFailedDelete
	switch {
	case errors.Is(failure, errCreate):
		reason = v1alpha1.MachineSetReasonFailedCreate
	case errors.Is(failure, errOwner):
		reason = v1alpha1.MachineSetReasonFailedAdopt
	case errors.Is(failure, errUpdate):
		reason = v1alpha1.MachineSetReasonFailedUpdate
	}
	return isTrue(v1alpha1.MachineSetReplicaFailure, reason, withoutName(failure, f.Set.Name), f.Now)
}

// frozenCondition returns the condition that explains why a set is frozen, or nil if it is not.
func frozenCondition(f scale.Facts, done *outcome) *v1alpha1.MachineSetCondition {
	if !scale.Frozen(done.set) {
		return nil
	}
	if at := condition(f.Set.Status.Conditions, v1alpha1.MachineSetFrozen); at >= 0 {
		return f.Set.Status.Conditions[at].DeepCopy()
	}
	message := cmp.Or(done.froze, "no machines are created while the label "+v1alpha1.LabelKeyFreeze+" is True")
	return isTrue(v1alpha1.MachineSetFrozen, v1alpha1.MachineSetReasonOvershoot, message, f.Now)
}

// overlapCondition returns a condition that names the other sets that select the same Machines. Each set keeps its
// own Machines, but any of the sets may adopt a Machine that loses its owner.
func overlapCondition(f scale.Facts) *v1alpha1.MachineSetCondition {
	if len(f.Overlaps) == 0 {
		return nil
	}
	names := strings.Join(f.Overlaps[:min(maxNamed, len(f.Overlaps))], ", ")
	if len(f.Overlaps) > maxNamed {
		names += " and others"
	}
	message := fmt.Sprintf("spec.selector: the same machines are selected by %s. Give each set a unique label.", names)
	return isTrue(v1alpha1.MachineSetSelectorOverlap, string(v1alpha1.MachineSetSelectorOverlap), message, f.Now)
}

func isTrue(kind v1alpha1.MachineSetConditionType, reason, message string, now time.Time) *v1alpha1.MachineSetCondition {
	return &v1alpha1.MachineSetCondition{
		Type: kind, Status: v1alpha1.ConditionTrue, Reason: reason, Message: messages.Shorten(message, maxEventMessage), LastTransitionTime: metav1.NewTime(now),
	}
}

// condition returns the index of the condition with the given type, or -1.
func condition(conditions []v1alpha1.MachineSetCondition, kind v1alpha1.MachineSetConditionType) int {
	return slices.IndexFunc(conditions, func(c v1alpha1.MachineSetCondition) bool { return c.Type == kind })
}

// invalidStatus returns the status of an invalid set. It keeps the numbers.
func invalidStatus(set *v1alpha1.MachineSet, message string, now time.Time) v1alpha1.MachineSetStatus {
	next := *set.Status.DeepCopy()
	setCondition(&next, v1alpha1.MachineSetReplicaFailure, isTrue(v1alpha1.MachineSetReplicaFailure, v1alpha1.MachineSetReasonInvalidSpec, message, now))
	return next
}

// setCondition sets a condition, or removes it if desired is nil.
func setCondition(status *v1alpha1.MachineSetStatus, kind v1alpha1.MachineSetConditionType, desired *v1alpha1.MachineSetCondition) {
	at := condition(status.Conditions, kind)
	switch {
	case desired == nil:
		status.Conditions = slices.DeleteFunc(status.Conditions, func(c v1alpha1.MachineSetCondition) bool { return c.Type == kind })
	case at < 0:
		status.Conditions = append(status.Conditions, *desired)
	default:
		if status.Conditions[at].Status == desired.Status {
			desired.LastTransitionTime = status.Conditions[at].LastTransitionTime
		}
		status.Conditions[at] = *desired
	}
}

// writeStatus writes the status if it differs from the stored one.
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
		return apierror.IgnoreGone(fmt.Errorf("writing status of machine set %s: %w", set.Name, err))
	}
	c.warn(set, before)
	return nil
}

// warn sends an event for each new or changed condition that reports a mistake of a user.
func (c *Controller) warn(set, before *v1alpha1.MachineSet) {
	for _, is := range set.Status.Conditions {
		same := slices.Contains(before.Status.Conditions, is)
		if !same && (is.Reason == v1alpha1.MachineSetReasonInvalidSpec || is.Type == v1alpha1.MachineSetSelectorOverlap) {
			c.Events.Event(set, corev1.EventTypeWarning, is.Reason, is.Message)
		}
	}
}

// reasonInvalidReplacement is the reason of events about invalid replacement policies.
const reasonInvalidReplacement = "InvalidReplacement"

// warnOfPolicy sends an event once if the replacement policy of a set is invalid. Such a policy comes from a user,
// since deployments set only valid ones.
func (c *Controller) warnOfPolicy(set *v1alpha1.MachineSet, sent *events.Last) {
	wrong := budget.Wrong(set)
	if wrong == "" {
		sent.Over(reasonInvalidReplacement)
		return
	}
	if sent.News(reasonInvalidReplacement, wrong) {
		c.Events.Event(set, corev1.EventTypeWarning, reasonInvalidReplacement, fmt.Sprintf(
			"Ignoring the invalid annotation %s: %s", v1alpha1.AnnotationKeyReplacement, messages.Shorten(wrong, maxEventMessage)))
	}
}
