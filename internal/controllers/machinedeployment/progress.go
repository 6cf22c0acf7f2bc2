package machinedeployment

import (
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// setProgress puts in how the rollout goes. Its deadline counts from the last progress,
// which is when the condition was last updated.
func setProgress(next *v1alpha1.MachineDeploymentStatus, f facts, failure error) {
	was, is := progressOf(f.deployment.Status), progress(f, *next, failure)
	setCondition(next, is, f.now)
	since := &next.Conditions[conditionAt(*next, is.Type)].LastUpdateTime
	switch {
	case runs(is.Reason) && progressed(f.deployment.Status, *next) || counts(is.Reason) && begins(f):
		*since = metav1.NewTime(f.now)
	case interrupts(was.Reason, is.Reason) && !begins(f):
		*since = was.LastUpdateTime
	}
}

// progress says how the rollout goes. Autoscalers read it: until it says that the current
// set is available, they take no machine away.
func progress(f facts, next v1alpha1.MachineDeploymentStatus, failure error) v1alpha1.MachineDeploymentCondition {
	const kind = v1alpha1.MachineDeploymentProgressing
	switch {
	case errors.Is(failure, errMutated):
		return condition(kind, v1alpha1.ConditionFalse, reasonMutated, failure.Error())
	case errors.Is(failure, errCreate):
		return condition(kind, v1alpha1.ConditionFalse, reasonSetCreateError, failure.Error())
	case errors.Is(failure, errNameTaken):
		return condition(kind, v1alpha1.ConditionTrue, reasonUpdated, "The name of the new machine set is taken; another one is tried.")
	case failure != nil && !saidApart(f, next):
		return condition(kind, v1alpha1.ConditionFalse, reasonSetUpdateError, failure.Error())
	case f.deployment.Spec.Paused:
		return condition(kind, v1alpha1.ConditionUnknown, reasonPaused, "Deployment is paused")
	case unsupported(f):
		return condition(kind, v1alpha1.ConditionFalse, reasonNotSupported, "The template changed, and the strategy InPlaceUpdate is not supported yet. The machines stay as they are; scaling works.")
	case f.current == nil:
		return underWay(f, next, "The removal of the old machines")
	case f.created:
		return condition(kind, v1alpha1.ConditionTrue, reasonCreated, fmt.Sprintf("Created new machine set %q", f.current.Name))
	case f.found:
		return condition(kind, v1alpha1.ConditionTrue, reasonFound, fmt.Sprintf("Found new machine set %q", f.current.Name))
	}
	if complete(f) || finished(f) {
		return condition(kind, v1alpha1.ConditionTrue, reasonComplete, completed(f.current))
	}
	return underWay(f, next, fmt.Sprintf("MachineSet %q", f.current.Name))
}

// saidApart reports whether a failure is no matter of the rollout: it is over, or paused, or late,
// and stays so.
func saidApart(f facts, next v1alpha1.MachineDeploymentStatus) bool {
	return finished(f) || f.deployment.Spec.Paused || timedOut(f, next)
}

// underWay says how a rollout goes that is not over.
func underWay(f facts, next v1alpha1.MachineDeploymentStatus, what string) v1alpha1.MachineDeploymentCondition {
	const kind = v1alpha1.MachineDeploymentProgressing
	switch was := progressOf(f.deployment.Status); {
	case was.Reason == reasonPaused:
		return condition(kind, v1alpha1.ConditionUnknown, reasonResumed, "Deployment is resumed")
	case timedOut(f, next):
		return condition(kind, v1alpha1.ConditionFalse, reasonTimedOut, what+" has timed out progressing.")
	}
	return condition(kind, v1alpha1.ConditionTrue, reasonUpdated, what+" is progressing.")
}

// finished reports whether the rollout of the current set was over before, so that what
// happens now is that it is scaled, or that a machine is replaced.
func finished(f facts) bool {
	is := progressOf(f.deployment.Status)
	return f.current != nil && is.Reason == reasonComplete && is.Message == completed(f.current) && total(f.old, asked) == 0
}

// completed is how a status says that the rollout of a set is over.
func completed(set *v1alpha1.MachineSet) string {
	return fmt.Sprintf("MachineSet %q has successfully progressed.", set.Name)
}

// complete reports whether all Machines are of the current template and can be used, but for
// those that a set keeps beyond what it asks for.
func complete(f facts) bool {
	wanted := f.deployment.Spec.Replicas
	return asked(f.current) == wanted && f.counted(f.current) == wanted && total(f.all(), f.counted) == int64(wanted) && usable(f.current) == wanted
}

// progressOf is what a status says of the rollout.
func progressOf(status v1alpha1.MachineDeploymentStatus) v1alpha1.MachineDeploymentCondition {
	if at := conditionAt(status, v1alpha1.MachineDeploymentProgressing); at >= 0 {
		return status.Conditions[at]
	}
	return v1alpha1.MachineDeploymentCondition{}
}

// progressed reports whether more machines are new, ready or available, or fewer are old.
func progressed(was, is v1alpha1.MachineDeploymentStatus) bool {
	return is.UpdatedReplicas > was.UpdatedReplicas ||
		is.Replicas-is.UpdatedReplicas < was.Replicas-was.UpdatedReplicas ||
		is.ReadyReplicas > was.ReadyReplicas ||
		is.AvailableReplicas > was.AvailableReplicas
}

// begins reports whether a rollout begins, so that what was said before is about another one: it
// has no set yet, and once more when it has.
func begins(f facts) bool {
	return f.created || f.found || f.current == nil && f.deployment.Status.ObservedGeneration < f.deployment.Generation
}

// counts reports whether the deadline runs under a reason of the condition.
func counts(reason string) bool {
	return slices.Contains([]string{reasonUpdated, reasonCreated, reasonFound, reasonResumed}, reason)
}

// runs reports whether the deadline runs under a reason, or goes on since a write failed.
func runs(reason string) bool { return counts(reason) || reason == reasonSetUpdateError }

// interrupts reports whether a write failed, or does not any more, which is no progress.
func interrupts(was, is string) bool {
	return is == reasonSetUpdateError && runs(was) || was == reasonSetUpdateError && is == reasonUpdated
}

// timedOut reports whether there was no progress for too long. A rollout that was late is late
// until it progresses.
func timedOut(f facts, next v1alpha1.MachineDeploymentStatus) bool {
	was, limit := progressOf(f.deployment.Status), f.deployment.Spec.ProgressDeadlineSeconds
	if limit == nil || progressed(f.deployment.Status, next) || begins(f) {
		return false
	}
	return was.Reason == reasonTimedOut || runs(was.Reason) && !f.now.Before(deadline(was, *limit))
}

func deadline(progress v1alpha1.MachineDeploymentCondition, seconds int32) time.Time {
	return progress.LastUpdateTime.Add(time.Duration(seconds) * time.Second)
}

// deadlineIn is the time until a rollout without progress is late; 0 if there is nothing to
// wait for.
func deadlineIn(f facts, next v1alpha1.MachineDeploymentStatus) time.Duration {
	is, limit := progressOf(next), f.deployment.Spec.ProgressDeadlineSeconds
	if limit == nil || !counts(is.Reason) {
		return 0
	}
	const second = time.Second // times of the API are whole seconds
	return max(second, deadline(is, *limit).Sub(f.now)+second)
}
