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
	"github.com/millwright-dev/millwright/internal/pool/reserve"
	"github.com/millwright-dev/millwright/internal/pool/rollout"
)

var (
	// failures are the reasons of Progressing that report the failure of a pass.
	failures = []string{v1alpha1.DeploymentReasonMutated, v1alpha1.DeploymentReasonSetCreateError, v1alpha1.DeploymentReasonSetUpdateError}
	// timed are the reasons of Progressing under which the deadline runs.
	timed = []string{v1alpha1.DeploymentReasonUpdated, v1alpha1.DeploymentReasonUpdateBlocked, v1alpha1.DeploymentReasonCreated, v1alpha1.DeploymentReasonFound, v1alpha1.DeploymentReasonResumed}
)

// progress reports the rollout. Its deadline counts from the condition's last update.
func (p *pass) progress() {
	was, is := Progress(p.was), p.rollout()
	p.set(is)
	since := &p.next.Conditions[indexOf(p.next, is.Type)].LastUpdateTime
	switch {
	case runs(is.Reason) && p.progressed() || slices.Contains(timed, is.Reason) && p.begins():
		*since = metav1.NewTime(p.Now)
	case interrupts(was.Reason, is.Reason) && !p.begins():
		*since = was.LastUpdateTime
	}
}

func progressing(status v1alpha1.ConditionStatus, reason, message string) *v1alpha1.MachineDeploymentCondition {
	is := condition(v1alpha1.MachineDeploymentProgressing, status, reason, message)
	return &is
}

// rollout returns the condition Progressing, before whose NewMachineSetAvailable autoscalers wait.
func (p *pass) rollout() v1alpha1.MachineDeploymentCondition {
	if is := cmp.Or(p.failed(), p.waits(), p.found(), p.ended()); is != nil {
		return *is
	}
	return p.goesOn()
}

// failed returns the condition of a pass that failed; nil if it did not.
func (p *pass) failed() *v1alpha1.MachineDeploymentCondition {
	switch failure := p.outcome.Failure; {
	case errors.Is(failure, rollout.ErrMutated):
		return progressing(v1alpha1.ConditionFalse, v1alpha1.DeploymentReasonMutated, failure.Error())
	case errors.Is(failure, rollout.ErrCreate):
		return progressing(v1alpha1.ConditionFalse, v1alpha1.DeploymentReasonSetCreateError, failure.Error())
	case errors.Is(failure, rollout.ErrNameTaken):
		return progressing(v1alpha1.ConditionTrue, v1alpha1.DeploymentReasonUpdated, "The name of the new machine set is taken; another one is tried.")
	case failure != nil && !p.failsApart():
		return progressing(v1alpha1.ConditionFalse, v1alpha1.DeploymentReasonSetUpdateError, failure.Error())
	}
	return nil
}

// waits returns the condition of a deployment that does not roll out its template; nil if it does.
func (p *pass) waits() *v1alpha1.MachineDeploymentCondition {
	switch {
	case p.Deployment.Spec.Paused:
		return progressing(v1alpha1.ConditionUnknown, v1alpha1.DeploymentReasonPaused, "Deployment is paused")
	case p.Class.DryRun():
		return progressing(v1alpha1.ConditionUnknown, v1alpha1.DeploymentReasonDryRun, fmt.Sprintf("The template is not rolled out, since the update strategy is %q: %s.", liveupdate.DryRun, p.Class.Says()))
	case rollout.Unsupported(p.Facts):
		return progressing(v1alpha1.ConditionFalse, v1alpha1.DeploymentReasonNotSupported, "The template changed, and there is no cluster whose nodes can be updated in place. The machines stay as they are; scaling works.")
	}
	return nil
}

// found returns the condition of a rollout that begins; nil if it began before.
func (p *pass) found() *v1alpha1.MachineDeploymentCondition {
	switch {
	case p.outcome.Created != nil:
		return progressing(v1alpha1.ConditionTrue, v1alpha1.DeploymentReasonCreated, fmt.Sprintf("Created new machine set %q", p.Current.Name))
	case p.reused:
		return progressing(v1alpha1.ConditionTrue, v1alpha1.DeploymentReasonFound, fmt.Sprintf("Found new machine set %q", p.Current.Name))
	}
	return nil
}

// what names that which makes progress.
func (p *pass) what() string {
	if p.Current == nil {
		return "The removal of the old machines"
	}
	return fmt.Sprintf("MachineSet %q", p.Current.Name)
}

// ended returns the condition of a rollout that is over, resumed or late; nil if it goes on.
func (p *pass) ended() *v1alpha1.MachineDeploymentCondition {
	switch {
	case p.Current != nil && (p.complete() || rollout.WasComplete(p.Facts)):
		return progressing(v1alpha1.ConditionTrue, v1alpha1.DeploymentReasonComplete, p.what()+" has successfully progressed.")
	case Progress(p.was).Reason == v1alpha1.DeploymentReasonPaused:
		return progressing(v1alpha1.ConditionUnknown, v1alpha1.DeploymentReasonResumed, "Deployment is resumed")
	case p.timedOut():
		return progressing(v1alpha1.ConditionFalse, v1alpha1.DeploymentReasonTimedOut, p.what()+" has timed out progressing.")
	}
	return nil
}

// goesOn returns the condition of a rollout that goes on, with what keeps an update in place from its end.
func (p *pass) goesOn() v1alpha1.MachineDeploymentCondition {
	reason, message := v1alpha1.DeploymentReasonUpdated, p.what()+" is progressing."
	switch {
	case p.Class.Holds():
		message = "The drivers of the machines are asked what an update would change: " + p.Class.Says() + "."
	case p.Class.Left() > 0:
		message = p.what() + " is progressing: " + p.Class.Says() + "."
	}
	if blocked := rollout.Blocked(p.Facts); blocked != "" {
		reason, message = v1alpha1.DeploymentReasonUpdateBlocked, p.what()+" is progressing, but: "+blocked
	}
	return *progressing(v1alpha1.ConditionTrue, reason, message)
}

// failsApart reports whether a failure does not belong to the rollout, which is over, paused or late.
func (p *pass) failsApart() bool {
	return rollout.WasComplete(p.Facts) || p.Deployment.Spec.Paused || p.timedOut()
}

// complete reports whether all Machines are of the current template and available, except retained ones.
func (p *pass) complete() bool {
	wanted := reserve.Wanted(p.Deployment)
	return !rollout.Moving(p.Facts) && p.Class.Left() == 0 && counts.Desired(p.Current) == wanted && p.Counted(p.Current) == wanted &&
		counts.Total(p.All(), p.Counted) == int64(wanted) && counts.Available(p.Current) == wanted
}

// Progress returns the condition Progressing of a status, the zero value if there is none.
func Progress(status v1alpha1.MachineDeploymentStatus) v1alpha1.MachineDeploymentCondition {
	if at := indexOf(status, v1alpha1.MachineDeploymentProgressing); at >= 0 {
		return status.Conditions[at]
	}
	return v1alpha1.MachineDeploymentCondition{}
}

// progressed reports whether more Machines are new, ready or available, or fewer are old.
func (p *pass) progressed() bool {
	return p.next.UpdatedReplicas > p.was.UpdatedReplicas ||
		p.next.Replicas-p.next.UpdatedReplicas < p.was.Replicas-p.was.UpdatedReplicas ||
		p.next.ReadyReplicas > p.was.ReadyReplicas ||
		p.next.AvailableReplicas > p.was.AvailableReplicas
}

// begins reports whether a rollout begins, so that the former status was about another one: before it
// has a set, and when it gets one.
func (p *pass) begins() bool {
	return p.outcome.Created != nil || p.reused || p.Current == nil && p.was.ObservedGeneration < p.Deployment.Generation
}

// runs reports whether the deadline runs under a reason. It goes on after a failed write.
func runs(reason string) bool {
	return slices.Contains(timed, reason) || reason == v1alpha1.DeploymentReasonSetUpdateError
}

// interrupts reports whether writes began or ceased to fail, neither of which is progress.
func interrupts(was, is string) bool {
	const failed = v1alpha1.DeploymentReasonSetUpdateError
	return is == failed && runs(was) || was == failed && (is == v1alpha1.DeploymentReasonUpdated || is == v1alpha1.DeploymentReasonUpdateBlocked)
}

// timedOut reports whether there was no progress for too long, and none since.
func (p *pass) timedOut() bool {
	was, limit := Progress(p.was), p.Deployment.Spec.ProgressDeadlineSeconds
	if limit == nil || p.progressed() || p.begins() {
		return false
	}
	return was.Reason == v1alpha1.DeploymentReasonTimedOut || runs(was.Reason) && !p.Now.Before(deadline(was, *limit))
}

func deadline(progress v1alpha1.MachineDeploymentCondition, seconds int32) time.Time {
	return progress.LastUpdateTime.Add(time.Duration(seconds) * time.Second)
}

// DeadlineIn returns the time until a rollout without progress is late; 0 if no deadline runs.
func DeadlineIn(f rollout.Facts, next v1alpha1.MachineDeploymentStatus) time.Duration {
	is, limit := Progress(next), f.Deployment.Spec.ProgressDeadlineSeconds
	if limit == nil || !slices.Contains(timed, is.Reason) {
		return 0
	}
	const second = time.Second // times of the API are whole seconds
	return max(second, deadline(is, *limit).Sub(f.Now)+second)
}
