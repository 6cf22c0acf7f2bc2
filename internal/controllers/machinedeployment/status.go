package machinedeployment

import (
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
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// Reasons of conditions and events, as in MCM; those from MachineSetUpdateError on are ours.
const (
	reasonAvailable      = "MinimumReplicasAvailable"
	reasonUnavailable    = "MinimumReplicasUnavailable"
	reasonUpdated        = "MachineSetUpdated"
	reasonComplete       = "NewMachineSetAvailable"
	reasonPaused         = "DeploymentPaused"
	reasonCreated        = "NewMachineSetCreated"
	reasonFound          = "FoundNewMachineSet"
	reasonResumed        = "DeploymentResumed"
	reasonTimedOut       = "ProgressDeadlineExceeded"
	reasonFrozen         = "MachineDeploymentStateSync"
	reasonSetCreateError = "MachineSetCreateError"
	reasonSelectsAll     = "SelectingAll"
	reasonSetUpdateError = "MachineSetUpdateError"
	reasonMutated        = "TemplateMutated"
	reasonMarkError      = "MachineMarkError"
	reasonInvalid        = "InvalidSpec"
	reasonNotSupported   = "NotSupported"
)

// reasonFailedCreate is what a set says that cannot make its machines.
const reasonFailedCreate = "FailedCreate"

// conditionOverlap is a condition of our own: somebody else selects the same Machines.
const conditionOverlap v1alpha1.MachineDeploymentConditionType = "SelectorOverlap"

// conditionReleased is a condition of our own: sets with machines do not match the selector
// any more.
const conditionReleased v1alpha1.MachineDeploymentConditionType = "SetReleased"

// conditionRollbackRefused is a condition of our own: the revision that somebody wanted to go
// back to does not exist.
const conditionRollbackRefused v1alpha1.MachineDeploymentConditionType = "RollbackRefused"

// mostFailed is how many failed Machines a status names, as in a set's status.
const mostFailed = 100

// longestSaid is how many bytes a condition says at most, as an event may. What a webhook answers
// has no bound, and nor has the number of sets.
const longestSaid = 1024

// nextStatus is the status that follows from the facts, and from a failure to change
// them.
func nextStatus(f facts, failure error) v1alpha1.MachineDeploymentStatus {
	was := f.deployment.Status
	next := v1alpha1.MachineDeploymentStatus{
		ObservedGeneration: f.deployment.Generation,
		Conditions:         slices.Clone(was.Conditions),
		CollisionCount:     was.CollisionCount,
		Selector:           metav1.FormatLabelSelector(f.deployment.Spec.Selector),
	}
	if failure != nil || len(f.unmarked) > 0 {
		next.ObservedGeneration = was.ObservedGeneration
	}
	if errors.Is(failure, errNameTaken) {
		collisions := int32(1)
		if was.CollisionCount != nil {
			collisions += *was.CollisionCount
		}
		next.CollisionCount = &collisions
	}
	if f.current != nil {
		next.UpdatedReplicas = max(0, f.current.Status.Replicas)
	}
	for _, set := range f.all() {
		count(&next, set)
	}
	next.UnavailableReplicas = bounded(total(f.all(), asked) - int64(next.AvailableReplicas))
	next.FailedMachines = capped(next.FailedMachines)
	setCondition(&next, availability(f, next), f.now)
	setProgress(&next, f, failure)
	setReplicaFailure(&next, f, failure)
	setFrozen(&next, f)
	setOverlap(&next, f)
	setReleased(&next, f)
	setUnmet(&next, f)
	return next
}

func count(next *v1alpha1.MachineDeploymentStatus, set *v1alpha1.MachineSet) {
	next.Replicas = plus(next.Replicas, set.Status.Replicas)
	next.ReadyReplicas = plus(next.ReadyReplicas, set.Status.ReadyReplicas)
	next.AvailableReplicas = plus(next.AvailableReplicas, set.Status.AvailableReplicas)
	next.PreservedFailedReplicas = plus(next.PreservedFailedReplicas, set.Status.PreservedFailedReplicas)
	if set.Status.FailedMachines != nil {
		for i := range *set.Status.FailedMachines {
			next.FailedMachines = append(next.FailedMachines, (*set.Status.FailedMachines)[i].DeepCopy())
		}
	}
}

// capped cuts a list of failed Machines that is too long, and says so at its end.
func capped(failed []*v1alpha1.MachineSummary) []*v1alpha1.MachineSummary {
	if more := len(failed) - mostFailed; more > 0 {
		failed = failed[:mostFailed]
		failed[mostFailed-1].LastOperation.Description += fmt.Sprintf(" (and at least %d more failed machines)", more)
	}
	return failed
}

func availability(f facts, next v1alpha1.MachineDeploymentStatus) v1alpha1.MachineDeploymentCondition {
	if next.AvailableReplicas >= f.deployment.Spec.Replicas-f.unavailable-next.PreservedFailedReplicas {
		return condition(v1alpha1.MachineDeploymentAvailable, v1alpha1.ConditionTrue, reasonAvailable, "Deployment has minimum availability.")
	}
	return condition(v1alpha1.MachineDeploymentAvailable, v1alpha1.ConditionFalse, reasonUnavailable, "Deployment does not have minimum availability.")
}

func condition(kind v1alpha1.MachineDeploymentConditionType, status v1alpha1.ConditionStatus, reason, message string) v1alpha1.MachineDeploymentCondition {
	return v1alpha1.MachineDeploymentCondition{Type: kind, Status: status, Reason: reason, Message: messages.Shorten(message, longestSaid)}
}

// setCondition puts a condition in. One that says the same keeps its times.
func setCondition(status *v1alpha1.MachineDeploymentStatus, is v1alpha1.MachineDeploymentCondition, now time.Time) {
	is.LastUpdateTime, is.LastTransitionTime = metav1.NewTime(now), metav1.NewTime(now)
	at := conditionAt(*status, is.Type)
	if at < 0 {
		status.Conditions = append(status.Conditions, is)
		return
	}
	was := &status.Conditions[at]
	if was.Status == is.Status && was.Reason == is.Reason && was.Message == is.Message {
		return
	}
	if was.Status == is.Status {
		is.LastTransitionTime = was.LastTransitionTime
	}
	*was = is
}

// setReplicaFailure says what failed that is no matter of a rollout: to scale a deployment whose
// rollout is over, paused or late, or to mark a Machine. Otherwise it repeats what the current
// set, or else an old one, says of its failures.
func setReplicaFailure(status *v1alpha1.MachineDeploymentStatus, f facts, failure error) {
	const kind = v1alpha1.MachineDeploymentReplicaFailure
	switch {
	case failure != nil && !said(*status, failure):
		setCondition(status, condition(kind, v1alpha1.ConditionTrue, reasonSetUpdateError, failure.Error()), f.now)
		return
	case len(f.unmarked) > 0:
		sentence := whyUnmarked(f).Error() + ". Its machine set is not scaled down until it is marked, since another machine would go."
		setCondition(status, condition(kind, v1alpha1.ConditionTrue, reasonMarkError, sentence), f.now)
		return
	}
	for _, set := range slices.Backward(f.all()) { // the current one comes last
		for _, failure := range set.Status.Conditions {
			if failure.Type == v1alpha1.MachineSetReplicaFailure {
				setCondition(status, condition(kind, failure.Status, failure.Reason, failure.Message), f.now)
				return
			}
		}
	}
	dropCondition(status, kind)
}

// said reports whether the progress in a status tells of a failure.
func said(status v1alpha1.MachineDeploymentStatus, failure error) bool {
	return errors.Is(failure, errNameTaken) || progressOf(status).Message == messages.Shorten(failure.Error(), longestSaid)
}

// setOverlap says so if other deployments select the same Machines. Each keeps its own, but
// which of them adopts one that loses its owner is chance.
func setOverlap(status *v1alpha1.MachineDeploymentStatus, f facts) {
	if len(f.overlaps) == 0 {
		dropCondition(status, conditionOverlap)
		return
	}
	sentence := fmt.Sprintf("spec.selector: the same machines are selected by %s. Give each deployment a label of its own.", few(f.overlaps))
	setCondition(status, condition(conditionOverlap, v1alpha1.ConditionTrue, string(conditionOverlap), sentence), f.now)
}

// few names some of many.
func few(names []string) string {
	const most = 3
	named := strings.Join(names[:min(most, len(names))], ", ")
	if more := len(names) - most; more > 0 {
		named += fmt.Sprintf(" and %d more", more)
	}
	return named
}

// setReleased says so if sets that were the deployment's have machines, and do not match its
// selector any more. As in MCM, they are set free with their machines.
func setReleased(status *v1alpha1.MachineDeploymentStatus, f facts) {
	if len(f.released) == 0 {
		dropCondition(status, conditionReleased)
		return
	}
	var names []string
	for _, set := range f.released {
		names = append(names, fmt.Sprintf("%s (machines: %d)", set.Name, existing(set)))
	}
	slices.Sort(names)
	sentence := fmt.Sprintf("spec.selector: it does not match machine sets that were the deployment's: %s. "+
		"They keep their machines, which are neither counted nor updated here. Delete them, or select them again.", few(names))
	setCondition(status, condition(conditionReleased, v1alpha1.ConditionTrue, string(conditionReleased), sentence), f.now)
}

// unmet is how a status says that a wish to roll back was not met. It counts until another
// template becomes the deployment's.
func unmet(f facts, why string) string {
	return fmt.Sprintf("%s; the template stays that of revision %d.", why, templateRevision(f))
}

// setUnmet takes out what was said of a wish to roll back that is of no interest any more.
func setUnmet(status *v1alpha1.MachineDeploymentStatus, f facts) {
	at := conditionAt(*status, conditionRollbackRefused)
	if at >= 0 && !strings.HasSuffix(status.Conditions[at].Message, unmet(f, "")) {
		dropCondition(status, conditionRollbackRefused)
	}
}

// refusedRollback is the status after a wish to roll back that cannot be met.
func refusedRollback(f facts, op operation) v1alpha1.MachineDeploymentStatus {
	next := *f.deployment.Status.DeepCopy()
	if op.topic == reasonNotFound {
		setCondition(&next, condition(conditionRollbackRefused, v1alpha1.ConditionTrue, op.topic, unmet(f, op.reason)), f.now)
	}
	return next
}

// conditionAt is where a status has a condition; negative if it has not.
func conditionAt(status v1alpha1.MachineDeploymentStatus, kind v1alpha1.MachineDeploymentConditionType) int {
	return slices.IndexFunc(status.Conditions, func(c v1alpha1.MachineDeploymentCondition) bool { return c.Type == kind })
}

func dropCondition(status *v1alpha1.MachineDeploymentStatus, kind v1alpha1.MachineDeploymentConditionType) {
	status.Conditions = slices.DeleteFunc(status.Conditions, func(c v1alpha1.MachineDeploymentCondition) bool { return c.Type == kind })
}

// setFrozen says so if a set creates nothing because too many machines exist.
func setFrozen(status *v1alpha1.MachineDeploymentStatus, f facts) {
	at := slices.IndexFunc(f.all(), frozen)
	if at < 0 {
		dropCondition(status, v1alpha1.MachineDeploymentFrozen)
		return
	}
	sentence := fmt.Sprintf("MachineSet %q is frozen: more machines exist than it should have. It creates none until some are gone.", f.all()[at].Name)
	setCondition(status, condition(v1alpha1.MachineDeploymentFrozen, v1alpha1.ConditionTrue, reasonFrozen, sentence), f.now)
}

// refusal is the status of a deployment that is not worked on. Its counters stay.
func refusal(deployment *v1alpha1.MachineDeployment, reason, sentence string, now time.Time) v1alpha1.MachineDeploymentStatus {
	next := *deployment.Status.DeepCopy()
	setCondition(&next, condition(v1alpha1.MachineDeploymentProgressing, v1alpha1.ConditionFalse, reason, sentence), now)
	return next
}

// observed is a status that counts as that of the deployment's generation.
func observed(status v1alpha1.MachineDeploymentStatus, deployment *v1alpha1.MachineDeployment) v1alpha1.MachineDeploymentStatus {
	status.ObservedGeneration = deployment.Generation
	return status
}

// writeStatus writes the status if it differs from what is stored.
func (c *Controller) writeStatus(ctx context.Context, deployment *v1alpha1.MachineDeployment, next v1alpha1.MachineDeploymentStatus) error {
	stored := deployment.Status
	stored.Selector = next.Selector // pruned under MCM's CRDs, so its absence must not cause a write
	if equality.Semantic.DeepEqual(stored, next) {
		return nil
	}
	before := deployment.DeepCopy()
	deployment.Status = next
	if err := c.written.PatchStatus(ctx, c.Client, deployment, before); err != nil {
		return expectations.UnlessGone(fmt.Errorf("status of machine deployment %s: %w", deployment.Name, err))
	}
	c.explainRefusal(deployment, before)
	return nil
}

// explainRefusal says once why a deployment is not worked on, or not as its user may think.
func (c *Controller) explainRefusal(deployment, before *v1alpha1.MachineDeployment) {
	for _, is := range deployment.Status.Conditions {
		said := slices.ContainsFunc(before.Status.Conditions, func(was v1alpha1.MachineDeploymentCondition) bool {
			return was.Reason == is.Reason && was.Message == is.Message
		})
		if !said && slices.Contains([]string{reasonInvalid, reasonSelectsAll, reasonNotSupported, reasonMutated, reasonMarkError, string(conditionOverlap)}, is.Reason) {
			c.Events.Event(deployment, corev1.EventTypeWarning, is.Reason, is.Message)
		}
	}
}
