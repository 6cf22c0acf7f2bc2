// Package status derives the status of a MachineDeployment from the facts and the outcome of the plan.
//
// Each problem that keeps a deployment from its desired state is the reason of a condition. See the
// DeploymentReason constants of the API.
package status

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/counts"
	"github.com/millwright-dev/millwright/internal/pool/reserve"
	"github.com/millwright-dev/millwright/internal/pool/revision"
	"github.com/millwright-dev/millwright/internal/pool/rollout"
	"github.com/millwright-dev/millwright/internal/pool/scale"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// maxFailed is how many failed Machines a status lists, as in the status of a set.
const maxFailed = 100

// maxMessage is the maximum length of a condition's message, in bytes. Messages of webhooks can be arbitrarily
// long.
const maxMessage = 1024

// scope is a status under construction.
type scope struct {
	// Rollout is the rollout after the plan was carried out.
	*rollout.Rollout
	outcome rollout.Outcome
	// reused reports whether an old set has become the current one in this pass.
	reused bool
	was    v1alpha1.MachineDeploymentStatus
	next   v1alpha1.MachineDeploymentStatus
}

// Next returns the status that follows from a rollout and the outcome of its plan.
func Next(r *rollout.Rollout, o rollout.Outcome) v1alpha1.MachineDeploymentStatus {
	s := &scope{Rollout: r.After(o), outcome: o, reused: o.Reused(r)}
	was := s.Deployment.Status
	s.was = was
	s.next = v1alpha1.MachineDeploymentStatus{
		ObservedGeneration: r.Deployment.Generation,
		Conditions:         slices.Clone(was.Conditions),
		CollisionCount:     was.CollisionCount,
		Selector:           metav1.FormatLabelSelector(r.Deployment.Spec.Selector),
	}
	if o.Failure != nil || len(o.Unmarked) > 0 {
		s.next.ObservedGeneration = was.ObservedGeneration
	}
	if errors.Is(o.Failure, rollout.ErrNameTaken) {
		s.next.CollisionCount = ptr.To(1 + ptr.Deref(was.CollisionCount, 0))
	}
	s.count()
	s.availability()
	s.progress()
	s.replicaFailure()
	s.frozen()
	s.overlap()
	s.released()
	s.rollback()
	return s.next
}

// count adds up what the sets report.
func (s *scope) count() {
	plus := func(n, reported int32) int32 { return counts.Clamp(int64(n) + int64(max(0, reported))) }
	if s.Current != nil {
		s.next.UpdatedReplicas = max(0, s.Current.Status.Replicas-s.LiveUpdate.Left())
	}
	for _, set := range s.All() {
		s.next.Replicas = plus(s.next.Replicas, set.Status.Replicas)
		s.next.ReadyReplicas = plus(s.next.ReadyReplicas, set.Status.ReadyReplicas)
		s.next.AvailableReplicas = plus(s.next.AvailableReplicas, set.Status.AvailableReplicas)
		s.next.PreservedFailedReplicas = plus(s.next.PreservedFailedReplicas, set.Status.PreservedFailedReplicas)
		if set.Status.FailedMachines != nil {
			for i := range *set.Status.FailedMachines {
				s.next.FailedMachines = append(s.next.FailedMachines, (*set.Status.FailedMachines)[i].DeepCopy())
			}
		}
	}
	s.next.UnavailableReplicas = counts.Clamp(counts.Total(s.All(), counts.Desired) - int64(s.next.AvailableReplicas))
	reserve.Separate(&s.next, s.Deployment)
	if more := len(s.next.FailedMachines) - maxFailed; more > 0 {
		s.next.FailedMachines = s.next.FailedMachines[:maxFailed]
		s.next.FailedMachines[maxFailed-1].LastOperation.Description += fmt.Sprintf(" (and at least %d more failed machines)", more)
	}
}

func (s *scope) availability() {
	_, unavailable := rollout.Bounds(s.Deployment)
	is := condition(v1alpha1.MachineDeploymentAvailable, v1alpha1.ConditionTrue, v1alpha1.DeploymentReasonAvailable, "Deployment has minimum availability.")
	if s.next.AvailableReplicas < s.Deployment.Spec.Replicas-unavailable-s.next.PreservedFailedReplicas {
		is.Status, is.Reason, is.Message = v1alpha1.ConditionFalse, v1alpha1.DeploymentReasonUnavailable, "Deployment does not have minimum availability."
	}
	s.set(is)
}

// replicaFailure reports failures that do not belong to the rollout: a failure to scale a deployment whose
// rollout is complete, paused or timed out, or a failure to mark a Machine. Otherwise it repeats the condition
// of the current set, or else of an old one.
func (s *scope) replicaFailure() {
	const kind = v1alpha1.MachineDeploymentReplicaFailure
	switch failure := s.outcome.Failure; {
	case failure != nil && !errors.Is(failure, rollout.ErrNameTaken) && !slices.Contains(failures, Progress(s.next).Reason):
		s.setOrRemove(kind, v1alpha1.DeploymentReasonSetUpdateError, failure.Error())
		return
	case len(s.outcome.Unmarked) > 0:
		s.setOrRemove(kind, v1alpha1.DeploymentReasonMarkError,
			s.outcome.MarkError().Error()+"; the machine set is not scaled down until the machine is marked, because it would delete another one.")
		return
	}
	for _, set := range slices.Backward(s.All()) { // the current one comes last
		for _, failure := range set.Status.Conditions {
			if failure.Type == v1alpha1.MachineSetReplicaFailure {
				s.set(condition(kind, failure.Status, failure.Reason, failure.Message))
				return
			}
		}
	}
	remove(&s.next, kind)
}

func (s *scope) frozen() {
	message, reason := "", v1alpha1.DeploymentReasonFrozen
	if i := slices.IndexFunc(s.All(), scale.Frozen); i >= 0 {
		set := s.All()[i]
		message = fmt.Sprintf("MachineSet %q is frozen: it has too many machines and creates none until enough are deleted.", set.Name)
		reason = frozenReason(set)
	}
	s.setOrRemove(v1alpha1.MachineDeploymentFrozen, reason, message)
}

// frozenReason returns the reason why a set is frozen. If the set has only the label, as after a change by a user, it
// returns the reason that MCM uses then.
func frozenReason(set *v1alpha1.MachineSet) string {
	for _, condition := range set.Status.Conditions {
		if condition.Type == v1alpha1.MachineSetFrozen && condition.Status == v1alpha1.ConditionTrue && condition.Reason != "" {
			return condition.Reason
		}
	}
	return v1alpha1.DeploymentReasonFrozen
}

// overlap reports other deployments that select the same Machines. Each deployment keeps its own Machines, but
// any of them may adopt a Machine that loses its owner.
func (s *scope) overlap() {
	message := ""
	if len(s.Overlaps) > 0 {
		message = fmt.Sprintf("spec.selector: the same machines are selected by %s. Give each deployment a label of its own.", firstOf(s.Overlaps))
	}
	s.setOrRemove(v1alpha1.MachineDeploymentSelectorOverlap, v1alpha1.DeploymentReasonSelectorOverlap, message)
}

// released reports sets that the selector no longer matches. They keep their Machines.
func (s *scope) released() {
	var names []string
	for _, set := range s.Released {
		names = append(names, fmt.Sprintf("%s (machines: %d)", set.Name, counts.Existing(set)))
	}
	slices.Sort(names)
	message := ""
	if len(names) > 0 {
		message = fmt.Sprintf("spec.selector: no longer matches machine sets of this deployment: %s. "+
			"Their machines are neither counted nor updated; delete these machine sets or select them again.", firstOf(names))
	}
	s.setOrRemove(v1alpha1.MachineDeploymentSetReleased, v1alpha1.DeploymentReasonSetReleased, message)
}

// setOrRemove sets a condition to True, or removes it if there is no message.
func (s *scope) setOrRemove(kind v1alpha1.MachineDeploymentConditionType, reason, message string) {
	if message == "" {
		remove(&s.next, kind)
		return
	}
	s.set(condition(kind, v1alpha1.ConditionTrue, reason, message))
}

// rollback removes the condition about a refused rollback when a rollout other than the first begins.
func (s *scope) rollback() {
	if s.begins() && revision.Number(s.Deployment) > 0 {
		remove(&s.next, v1alpha1.MachineDeploymentRollbackRefused)
	}
}

// firstOf joins the first three names.
func firstOf(names []string) string {
	const most = 3
	named := strings.Join(names[:min(most, len(names))], ", ")
	if more := len(names) - most; more > 0 {
		named += fmt.Sprintf(" and %d more", more)
	}
	return named
}

func (s *scope) set(is v1alpha1.MachineDeploymentCondition) { set(&s.next, is, s.Now) }

func condition(kind v1alpha1.MachineDeploymentConditionType, status v1alpha1.ConditionStatus, reason, message string) v1alpha1.MachineDeploymentCondition {
	return v1alpha1.MachineDeploymentCondition{Type: kind, Status: status, Reason: reason, Message: messages.Shorten(message, maxMessage)}
}

// set sets a condition of a status. If the condition does not change, its times do not change.
func set(status *v1alpha1.MachineDeploymentStatus, is v1alpha1.MachineDeploymentCondition, now time.Time) {
	at := indexOf(*status, is.Type)
	if at < 0 {
		is.LastUpdateTime, is.LastTransitionTime = metav1.NewTime(now), metav1.NewTime(now)
		status.Conditions = append(status.Conditions, is)
		return
	}
	was := &status.Conditions[at]
	is.LastUpdateTime, is.LastTransitionTime = was.LastUpdateTime, was.LastTransitionTime
	if *was == is {
		return
	}
	is.LastUpdateTime = metav1.NewTime(now)
	if was.Status != is.Status {
		is.LastTransitionTime = metav1.NewTime(now)
	}
	*was = is
}

// indexOf returns the index of the condition of a type, or a negative number if there is none.
func indexOf(status v1alpha1.MachineDeploymentStatus, kind v1alpha1.MachineDeploymentConditionType) int {
	return slices.IndexFunc(status.Conditions, func(c v1alpha1.MachineDeploymentCondition) bool { return c.Type == kind })
}

func remove(status *v1alpha1.MachineDeploymentStatus, kind v1alpha1.MachineDeploymentConditionType) {
	status.Conditions = slices.DeleteFunc(status.Conditions, func(c v1alpha1.MachineDeploymentCondition) bool { return c.Type == kind })
}

// Deleting returns the status of a deployment that is being deleted. All existing Machines that are not
// available count as unavailable. The conditions about the last rollout and about released sets do not change.
func Deleting(r *rollout.Rollout, failure error) v1alpha1.MachineDeploymentStatus {
	was, next := r.Deployment.Status, Next(r, rollout.Outcome{Failure: failure})
	next.UnavailableReplicas = max(0, next.Replicas-next.AvailableReplicas)
	for _, set := range r.Old { // no set is current because all are being deleted
		if revision.Same(&set.Spec.Template, &r.Deployment.Spec.Template) {
			next.UpdatedReplicas = counts.Clamp(int64(next.UpdatedReplicas) + int64(max(0, set.Status.Replicas)))
		}
	}
	for _, kind := range []v1alpha1.MachineDeploymentConditionType{v1alpha1.MachineDeploymentProgressing, v1alpha1.MachineDeploymentSetReleased} {
		stored, at := indexOf(was, kind), indexOf(next, kind)
		switch {
		case stored < 0:
			remove(&next, kind)
		case at < 0:
			next.Conditions = append(next.Conditions, was.Conditions[stored])
		default:
			next.Conditions[at] = was.Conditions[stored]
		}
	}
	if failure != nil {
		set(&next, condition(v1alpha1.MachineDeploymentReplicaFailure, v1alpha1.ConditionTrue, v1alpha1.DeploymentReasonSetUpdateError, failure.Error()), r.Now)
	}
	return next
}

// Refused returns the status of a deployment that is not reconciled. Its numbers do not change.
func Refused(deployment *v1alpha1.MachineDeployment, reason, message string, now time.Time) v1alpha1.MachineDeploymentStatus {
	next := *deployment.Status.DeepCopy()
	set(&next, condition(v1alpha1.MachineDeploymentProgressing, v1alpha1.ConditionFalse, reason, message), now)
	return next
}

// RollbackRefused returns the status after a rollback to a revision that does not exist.
func RollbackRefused(r *rollout.Rollout, why string) v1alpha1.MachineDeploymentStatus {
	next := *r.Deployment.Status.DeepCopy()
	message := fmt.Sprintf("%s; the template remains that of revision %d.", why, r.TemplateRevision())
	set(&next, condition(v1alpha1.MachineDeploymentRollbackRefused, v1alpha1.ConditionTrue, v1alpha1.DeploymentReasonRevisionNotFound, message), r.Now)
	return next
}
