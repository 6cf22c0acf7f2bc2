package pool

import (
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// deployment explains a deployment that is asked about.
func (e *explainer) deployment() {
	if !e.stopped() {
		e.unseen(e.Deployment, e.Deployment.Status.ObservedGeneration)
	}
	current := e.current()
	if current != nil {
		e.invalid(current)
		e.held(current)
		e.backOff(current)
		e.minReady(current)
	}
	for set := range e.earlier(current) {
		e.invalid(set)
		e.held(set)
		e.minReady(set)
	}
	for i := range e.Sets {
		if set := &e.Sets[i]; set != current && set.Spec.Replicas == 0 && e.staying(set) {
			e.invalid(set)
			e.undeleted(set)
		}
	}
}

// earlier are the sets of earlier templates that are to have Machines.
func (e *explainer) earlier(current *v1alpha1.MachineSet) iter.Seq[*v1alpha1.MachineSet] {
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
func (e *explainer) late() {
	for set := range e.earlier(e.current()) {
		e.backOff(set)
	}
	for _, condition := range e.Deployment.Status.Conditions {
		if condition.Reason == "ProgressDeadlineExceeded" {
			seconds := int32(0)
			if limit := e.Deployment.Spec.ProgressDeadlineSeconds; limit != nil {
				seconds = *limit
			}
			e.Why(late, "", condition.LastUpdateTime.Time, "{text}", condition.Message, "{seconds}", number(seconds))
		}
	}
}

// stopped says what conditions tell of a rollout that does not go on; it reports whether one keeps
// the deployment from being worked on.
func (e *explainer) stopped() bool {
	stopped := false
	for _, condition := range e.Deployment.Status.Conditions {
		if statement, known := byReason[condition.Reason]; known {
			e.Why(statement, "", condition.LastTransitionTime.Time, "{text}", condition.Message)
			stopped = stopped || statement.Cause == report.InvalidSpec
		}
	}
	wish := e.Deployment.Spec.RollbackTo != nil
	if rolls := e.old() > 0 || e.current() == nil && !e.SetsUnread; !e.Deployment.Spec.Paused || !rolls && !wish {
		return stopped
	}
	since := time.Time{}
	for _, condition := range e.Deployment.Status.Conditions {
		if condition.Reason == "DeploymentPaused" {
			since = condition.LastTransitionTime.Time
		}
	}
	e.Why(paused, "", since)
	if wish {
		e.Why(pausedWish, "", time.Time{})
	}
	return stopped
}

// old is how many Machines of earlier templates are to be replaced.
func (e *explainer) old() int32 {
	return e.Pool.Exist - e.Pool.Updated - (e.Pool.Preserved - e.newest.Preserved)
}

// rollout says how far the replacement of old Machines is.
func (e *explainer) rollout() {
	old := e.old()
	if old == 0 || e.Deployment.Spec.Paused {
		return
	}
	var sets []string
	for _, part := range e.Pool.Sets {
		left := part.Exist - part.Preserved
		if current := e.current(); left > 0 && (current == nil || part.Name != current.Name) {
			sets = append(sets, fmt.Sprintf("%s of %s (revision %s)", messages.Machines(left), part.Name, part.Revision))
		}
	}
	if e.SetsUnread {
		sets = []string{messages.Machines(old)}
	}
	for _, condition := range e.Deployment.Status.Conditions {
		if condition.Type == v1alpha1.MachineDeploymentProgressing {
			e.deadline(condition)
		}
	}
	e.Why(rolling, "", time.Time{}, "{count}", strings.Join(sets, ", "), "{are}", messages.Are(old), "{bounds}", e.bounds())
}

// bounds says how a rollout replaces Machines.
func (e *explainer) bounds() string {
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
func (e *explainer) deadline(progress v1alpha1.MachineDeploymentCondition) {
	limit := e.Deployment.Spec.ProgressDeadlineSeconds
	if limit == nil || progress.Status != v1alpha1.ConditionTrue {
		return
	}
	if at := progress.LastUpdateTime.Add(time.Duration(*limit) * time.Second); at.After(e.now) {
		e.Next(at, stalls)
	}
}

// remarks says what a user should know, and what keeps nothing from being done: so it comes
// after all that does. Of overlapping selectors a deployment speaks for its sets.
func (e *explainer) remarks() {
	if e.Kind == Deployment {
		for _, condition := range e.Deployment.Status.Conditions {
			if statement, known := remarks[condition.Type]; known {
				e.Why(statement, "", condition.LastTransitionTime.Time, "{text}", condition.Message)
			}
		}
	}
	if slices.ContainsFunc(e.Report.Why, func(f report.Finding) bool { return f.Cause == report.SelectorOverlap }) {
		return
	}
	for i := range e.Sets {
		set := &e.Sets[i]
		for _, condition := range set.Status.Conditions {
			if condition.Type == "SelectorOverlap" {
				e.Why(overlap, e.named(set), condition.LastTransitionTime.Time, "{text}", condition.Message)
			}
		}
	}
}
