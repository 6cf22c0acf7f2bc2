package explain

import (
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// deployed explains a deployment that is asked about.
func (e *poolExplainer) deployed() {
	if !e.stopped() {
		e.unseen(e.Deployment, e.Deployment.Status.ObservedGeneration)
	}
	current := e.current()
	if current != nil {
		e.refused(current)
		e.held(current)
		e.backOff(current)
		e.ripening(current)
	}
	for set := range e.earlier(current) {
		e.refused(set)
		e.held(set)
		e.ripening(set)
	}
	for i := range e.Sets {
		if set := &e.Sets[i]; set != current && set.Spec.Replicas == 0 && e.staying(set) {
			e.refused(set)
			e.undeleted(set)
		}
	}
}

// earlier are the sets of earlier templates that are to have Machines.
func (e *poolExplainer) earlier(current *v1alpha1.MachineSet) iter.Seq[*v1alpha1.MachineSet] {
	return func(yield func(*v1alpha1.MachineSet) bool) {
		for i := range e.Sets {
			if set := &e.Sets[i]; set != current && set.Spec.Replicas > 0 && !yield(set) {
				return
			}
		}
	}
}

// late says what does not tell why a rollout does not go on: that earlier sets wait, which it
// replaces, and that it is late.
func (e *poolExplainer) late() {
	for set := range e.earlier(e.current()) {
		e.backOff(set)
	}
	for _, condition := range e.Deployment.Status.Conditions {
		if condition.Reason == "ProgressDeadlineExceeded" {
			e.why(Stalled, "", condition.LastUpdateTime.Time, "%s There was no progress for %ds (spec.progressDeadlineSeconds)", condition.Message, deref(e.Deployment.Spec.ProgressDeadlineSeconds))
		}
	}
}

// stopped says what conditions tell of a rollout that does not go on; false if none keeps
// the deployment from being worked on.
func (e *poolExplainer) stopped() bool {
	worked := true
	for _, condition := range e.Deployment.Status.Conditions {
		since := condition.LastTransitionTime.Time
		switch condition.Reason {
		case reasonInvalidSpec, "SelectingAll":
			worked = false
			e.why(InvalidSpec, "", since, "%s", condition.Message)
			e.remedy("Correct the field that is named. Nothing is done before")
		case "NotSupported":
			e.why(NotSupported, "", since, "%s", condition.Message)
			e.remedy("Choose another strategy, or undo the change of the template")
		case "MachineSetCreateError", "MachineSetUpdateError":
			e.why(SetBlocked, "", since, "%s", condition.Message)
		case "TemplateMutated":
			e.why(SetBlocked, "", since, "%s", condition.Message)
			e.remedy("Keep mutating webhooks and policies from changing the templates of machinesets: their machines would not be what the deployment asks for")
		case "MachineMarkError":
			e.why(SetBlocked, "", since, "%s", condition.Message)
			e.remedy("Look at policies, webhooks and rights on machines: one was named for deletion and cannot be marked, so its set is not scaled down")
		}
	}
	if e.Deployment.Spec.Paused {
		e.paused()
	}
	return !worked
}

// paused says what a pause keeps from being done.
func (e *poolExplainer) paused() {
	rolls := e.old() > 0 || e.current() == nil && !e.SetsUnread
	if !rolls && e.Deployment.Spec.RollbackTo == nil {
		return
	}
	e.why(Paused, "", e.since("DeploymentPaused"), "it is paused: sizes change, and no machine of another template is made")
	if e.Deployment.Spec.RollbackTo != nil {
		e.why(Paused, "", time.Time{}, "the wish to roll back (spec.rollbackTo) waits for the end of the pause")
	}
	e.advise("To go on: millwright rollout resume %s -n %s", e.Key.Name, e.Key.Namespace)
}

// since is when a condition of a reason began; zero if there is none.
func (e *poolExplainer) since(reason string) time.Time {
	for _, condition := range e.Deployment.Status.Conditions {
		if condition.Reason == reason {
			return condition.LastTransitionTime.Time
		}
	}
	return time.Time{}
}

// old is how many Machines of earlier templates are to be replaced.
func (e *poolExplainer) old() int32 {
	pool := e.report.Pool
	return pool.Exist - pool.Updated - (pool.Preserved - pool.current.Preserved)
}

// rollout says how far the replacement of old Machines is.
func (e *poolExplainer) rollout() {
	old := e.old()
	if old == 0 || e.Deployment.Spec.Paused {
		return
	}
	var sets []string
	for _, part := range e.report.Pool.Sets {
		left := part.Exist - part.Preserved
		if current := e.current(); left > 0 && (current == nil || part.Name != current.Name) {
			sets = append(sets, fmt.Sprintf("%s of %s (revision %s)", machines(left), part.Name, part.Revision))
		}
	}
	if e.SetsUnread {
		sets = []string{machines(old)}
	}
	text := "a rollout goes on: " + strings.Join(sets, ", ") + " are still to be replaced"
	if old == 1 {
		text = strings.Replace(text, " are ", " is ", 1)
	}
	if at := slices.IndexFunc(e.Deployment.Status.Conditions, func(c v1alpha1.MachineDeploymentCondition) bool {
		return c.Type == v1alpha1.MachineDeploymentProgressing
	}); at >= 0 {
		e.deadline(e.Deployment.Status.Conditions[at])
	}
	e.why(Rollout, "", time.Time{}, "%s; %s", text, e.bounds())
}

// bounds says how a rollout replaces Machines.
func (e *poolExplainer) bounds() string {
	strategy := e.Deployment.Spec.Strategy
	if strategy.Type != "" && strategy.Type != v1alpha1.RollingUpdateMachineDeploymentStrategyType {
		return fmt.Sprintf("the strategy is %s", strategy.Type)
	}
	surge, unavailable := intstr.FromInt32(1), intstr.FromInt32(1)
	if rolling := strategy.RollingUpdate; rolling != nil {
		surge = *intstr.ValueOrDefault(rolling.MaxSurge, surge)
		unavailable = *intstr.ValueOrDefault(rolling.MaxUnavailable, unavailable)
	}
	return fmt.Sprintf("maxSurge is %s, maxUnavailable %s", surge.String(), unavailable.String())
}

// deadline says when a rollout counts as stalled.
func (e *poolExplainer) deadline(progress v1alpha1.MachineDeploymentCondition) {
	limit := e.Deployment.Spec.ProgressDeadlineSeconds
	if limit == nil || progress.Status != v1alpha1.ConditionTrue {
		return
	}
	at := progress.LastUpdateTime.Add(time.Duration(*limit) * time.Second)
	if at.After(e.now) {
		e.report.Next = append(e.report.Next, Step{At: at, Text: "The rollout counts as stalled, unless it makes progress before; it goes on all the same"})
	}
}
