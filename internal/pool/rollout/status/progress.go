package status

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/counts"
	"github.com/millwright-dev/millwright/internal/pool/liveupdate"
	"github.com/millwright-dev/millwright/internal/pool/rollout"
)

var (
	// failures are the reasons of Progressing that report the failure of a pass.
	failures = []string{v1alpha1.DeploymentReasonMutated, v1alpha1.DeploymentReasonSetCreateError, v1alpha1.DeploymentReasonSetUpdateError}
	// timed are the reasons of Progressing for which the progress deadline applies.
	timed = []string{v1alpha1.DeploymentReasonUpdated, v1alpha1.DeploymentReasonUpdateBlocked, v1alpha1.DeploymentReasonCreated, v1alpha1.DeploymentReasonFound, v1alpha1.DeploymentReasonResumed}
)

// progress sets the condition Progressing. The deadline counts from its last update time.
func (s *scope) progress() {
	was, is := Progress(s.was), s.rollout()
	s.set(is)
	since := &s.next.Conditions[indexOf(s.next, is.Type)].LastUpdateTime
	switch {
	case runs(is.Reason) && s.progressed() || slices.Contains(timed, is.Reason) && s.begins():
		*since = metav1.NewTime(s.Now)
	case interrupts(was.Reason, is.Reason) && !s.begins():
		*since = was.LastUpdateTime
	}
}

func progressing(status v1alpha1.ConditionStatus, reason, message string) *v1alpha1.MachineDeploymentCondition {
	is := condition(v1alpha1.MachineDeploymentProgressing, status, reason, message)
	return &is
}

// rollout returns the condition Progressing. Autoscalers wait for its reason NewMachineSetAvailable.
func (s *scope) rollout() v1alpha1.MachineDeploymentCondition {
	if is := cmp.Or(s.failed(), s.held(), s.found(), s.ended()); is != nil {
		return *is
	}
	return s.ongoing()
}

// failed returns the condition of a pass that failed, or nil if it did not fail.
func (s *scope) failed() *v1alpha1.MachineDeploymentCondition {
	switch failure := s.outcome.Failure; {
	case errors.Is(failure, rollout.ErrMutated):
		return progressing(v1alpha1.ConditionFalse, v1alpha1.DeploymentReasonMutated, failure.Error())
	case errors.Is(failure, rollout.ErrCreate):
		return progressing(v1alpha1.ConditionFalse, v1alpha1.DeploymentReasonSetCreateError, failure.Error())
	case errors.Is(failure, rollout.ErrNameTaken):
		return progressing(v1alpha1.ConditionTrue, v1alpha1.DeploymentReasonUpdated, "The name of the new machine set is taken; retrying with another name.")
	case failure != nil && !s.failsApart():
		return progressing(v1alpha1.ConditionFalse, v1alpha1.DeploymentReasonSetUpdateError, failure.Error())
	}
	return nil
}

// held returns the condition of a deployment that does not roll out its template, or nil if it does.
func (s *scope) held() *v1alpha1.MachineDeploymentCondition {
	awaited := s.AwaitsRestore()
	switch {
	case awaited != "":
		return progressing(v1alpha1.ConditionUnknown, v1alpha1.DeploymentReasonAwaitingRestore, "Waiting for "+awaited+". Nothing is created or deleted until then.")
	case s.Deployment.Spec.Paused:
		return progressing(v1alpha1.ConditionUnknown, v1alpha1.DeploymentReasonPaused, "Deployment is paused")
	case s.LiveUpdate.DryRun():
		return progressing(v1alpha1.ConditionUnknown, v1alpha1.DeploymentReasonDryRun, fmt.Sprintf("The template is not rolled out because the update strategy is %q: %s.", liveupdate.DryRun, s.LiveUpdate.Summary()))
	case s.Unsupported:
		return progressing(v1alpha1.ConditionFalse, v1alpha1.DeploymentReasonNotSupported, "The template changed, but in-place updates need a target cluster and none is configured. Machines are not updated; scaling still works.")
	}
	return nil
}

// found returns the condition of a rollout that begins, or nil if it began before.
func (s *scope) found() *v1alpha1.MachineDeploymentCondition {
	switch {
	case s.outcome.Created != nil:
		return progressing(v1alpha1.ConditionTrue, v1alpha1.DeploymentReasonCreated, fmt.Sprintf("Created new machine set %q", s.Current.Name))
	case s.reused:
		return progressing(v1alpha1.ConditionTrue, v1alpha1.DeploymentReasonFound, fmt.Sprintf("Found new machine set %q", s.Current.Name))
	}
	return nil
}

// subject names what makes progress.
func (s *scope) subject() string {
	if s.Current == nil {
		return "The removal of the old machines"
	}
	return fmt.Sprintf("MachineSet %q", s.Current.Name)
}

// ended returns the condition of a rollout that is complete, resumed or timed out, or nil if it continues.
func (s *scope) ended() *v1alpha1.MachineDeploymentCondition {
	switch {
	case s.Current != nil && (s.complete() || s.WasComplete):
		return progressing(v1alpha1.ConditionTrue, v1alpha1.DeploymentReasonComplete, s.subject()+" has successfully progressed.")
	case Progress(s.was).Reason == v1alpha1.DeploymentReasonPaused:
		return progressing(v1alpha1.ConditionUnknown, v1alpha1.DeploymentReasonResumed, "Deployment is resumed")
	case s.timedOut():
		return progressing(v1alpha1.ConditionFalse, v1alpha1.DeploymentReasonTimedOut, s.subject()+" has timed out progressing.")
	}
	return nil
}

// ongoing returns the condition of a rollout in progress, including what blocks an in-place update.
func (s *scope) ongoing() v1alpha1.MachineDeploymentCondition {
	reason, message := v1alpha1.DeploymentReasonUpdated, s.subject()+" is progressing."
	switch {
	case s.LiveUpdate.Holds():
		message = "Asking the drivers what an update would change: " + s.LiveUpdate.Summary() + "."
	case s.LiveUpdate.Left() > 0:
		message = s.subject() + " is progressing: " + s.LiveUpdate.Summary() + "."
	}
	if blocked := s.Blocked(); blocked != "" {
		reason, message = v1alpha1.DeploymentReasonUpdateBlocked, s.subject()+" is progressing, but: "+blocked
	}
	return *progressing(v1alpha1.ConditionTrue, reason, message)
}

// failsApart reports whether a failure is unrelated to the rollout, which is complete, paused or timed out.
func (s *scope) failsApart() bool {
	return s.WasComplete || s.Deployment.Spec.Paused || s.timedOut()
}

// complete reports whether all Machines, except retained ones, have the current template and are available.
func (s *scope) complete() bool {
	return !s.Moving && s.LiveUpdate.Left() == 0 && counts.Desired(s.Current) == s.Desired && s.Counted(s.Current) == s.Desired &&
		counts.Total(s.All(), s.Counted) == int64(s.Desired) && counts.Available(s.Current) == s.Desired
}

// Progress returns the condition Progressing of a status, or the zero value if there is none.
func Progress(status v1alpha1.MachineDeploymentStatus) v1alpha1.MachineDeploymentCondition {
	if at := indexOf(status, v1alpha1.MachineDeploymentProgressing); at >= 0 {
		return status.Conditions[at]
	}
	return v1alpha1.MachineDeploymentCondition{}
}

// progressed reports whether more Machines are updated, ready or available, or fewer are old.
func (s *scope) progressed() bool {
	return s.next.UpdatedReplicas > s.was.UpdatedReplicas ||
		s.next.Replicas-s.next.UpdatedReplicas < s.was.Replicas-s.was.UpdatedReplicas ||
		s.next.ReadyReplicas > s.was.ReadyReplicas ||
		s.next.AvailableReplicas > s.was.AvailableReplicas
}

// begins reports whether a rollout begins, so that the former status was about another one. That is the case
// before the rollout has a set, and when it gets one.
func (s *scope) begins() bool {
	return s.outcome.Created != nil || s.reused || s.Current == nil && s.was.ObservedGeneration < s.Deployment.Generation
}

// runs reports whether the deadline applies for a reason. It also continues after a failed write.
func runs(reason string) bool {
	return slices.Contains(timed, reason) || reason == v1alpha1.DeploymentReasonSetUpdateError
}

// interrupts reports whether writes started or stopped failing, neither of which is progress.
func interrupts(was, is string) bool {
	const failed = v1alpha1.DeploymentReasonSetUpdateError
	return is == failed && runs(was) || was == failed && (is == v1alpha1.DeploymentReasonUpdated || is == v1alpha1.DeploymentReasonUpdateBlocked)
}

// timedOut reports whether the deadline expired without progress, and there was none since.
func (s *scope) timedOut() bool {
	was, limit := Progress(s.was), s.Deployment.Spec.ProgressDeadlineSeconds
	if limit == nil || s.progressed() || s.begins() {
		return false
	}
	return was.Reason == v1alpha1.DeploymentReasonTimedOut || runs(was.Reason) && !s.Now.Before(deadline(was, *limit))
}

func deadline(progress v1alpha1.MachineDeploymentCondition, seconds int32) time.Time {
	return progress.LastUpdateTime.Add(time.Duration(seconds) * time.Second)
}

// DeadlineIn returns the time until a rollout without progress times out, or 0 if no deadline applies.
func DeadlineIn(deployment *v1alpha1.MachineDeployment, next v1alpha1.MachineDeploymentStatus, now time.Time) time.Duration {
	is, limit := Progress(next), deployment.Spec.ProgressDeadlineSeconds
	if limit == nil || !slices.Contains(timed, is.Reason) {
		return 0
	}
	const second = time.Second // API timestamps have a resolution of one second
	return max(second, deadline(is, *limit).Sub(now)+second)
}
