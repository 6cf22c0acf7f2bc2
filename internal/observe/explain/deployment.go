package explain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// deployment says what keeps a deployment from having its Machines. What its earlier sets that want
// none fail to delete counts as well.
func (e *poolExplainer) deployment() {
	if !e.stopped() {
		e.unseen(e.Deployment.Status.ObservedGeneration)
	}
	if e.current != nil {
		e.set(e.current, true)
	}
	for _, set := range e.earlier() {
		if set.Spec.Replicas > 0 {
			e.set(set, false)
		} else if e.staying(set) {
			e.refused(set)
			e.undeleted(set)
		}
	}
}

// CauseOf returns the cause that a condition of a deployment stands for; empty if none does.
func CauseOf(condition v1alpha1.MachineDeploymentCondition) report.Cause {
	statement, known := byReason[condition.Reason]
	if !known {
		statement = byType[condition.Type]
	}
	return statement.Cause
}

func (e *poolExplainer) earlier() []*v1alpha1.MachineSet {
	return slices.DeleteFunc(slices.Clone(e.Sets), func(set *v1alpha1.MachineSet) bool { return set == e.current })
}

// late says what does not cause that a rollout does not go on: that earlier sets, which it replaces,
// wait, and that it is late.
func (e *poolExplainer) late() {
	for _, set := range e.earlier() {
		if set.Spec.Replicas > 0 {
			e.backOff(set)
		}
	}
	for _, condition := range e.Deployment.Status.Conditions {
		if condition.Reason == v1alpha1.DeploymentReasonTimedOut {
			seconds := ptr.Deref(e.Deployment.Spec.ProgressDeadlineSeconds, 0)
			e.Why(late, "", condition.LastUpdateTime.Time, "{text}", condition.Message, "{seconds}", number(seconds))
		}
	}
}

// stopped says which conditions keep a rollout from going on, and reports whether one keeps the
// manager from doing anything.
func (e *poolExplainer) stopped() bool {
	stopped, since := false, time.Time{}
	for _, condition := range e.Deployment.Status.Conditions {
		if statement, known := byReason[condition.Reason]; known {
			e.Why(statement, "", condition.LastTransitionTime.Time, "{text}", condition.Message)
			stopped = stopped || statement.Cause == report.InvalidSpec
		}
		if condition.Reason == v1alpha1.DeploymentReasonPaused {
			since = condition.LastTransitionTime.Time
		}
	}
	wish := e.Deployment.Spec.RollbackTo != nil
	if rolls := e.old() > 0 || e.current == nil && !e.SetsUnread; !e.Deployment.Spec.Paused || !rolls && !wish {
		return stopped
	}
	e.Why(paused, "", since)
	if wish {
		e.Why(pausedWish, "", time.Time{})
	}
	return stopped
}

// old is how many Machines of earlier templates are to be replaced.
func (e *poolExplainer) old() int32 {
	return e.Pool.Exist - e.Pool.Updated - (e.Pool.Preserved - e.newest.Preserved)
}

func (e *poolExplainer) rollout() {
	old := e.old()
	if old == 0 || e.Deployment.Spec.Paused {
		return
	}
	var sets []string
	for _, part := range e.Pool.Sets {
		if left := part.Exist - part.Preserved; left > 0 && (e.current == nil || part.Name != e.current.Name) {
			sets = append(sets, fmt.Sprintf("%s of %s (revision %s)", messages.Machines(left), part.Name, part.Revision))
		}
	}
	if e.SetsUnread {
		sets = []string{messages.Machines(old)}
	}
	for _, is := range e.Deployment.Status.Conditions {
		limit := e.Deployment.Spec.ProgressDeadlineSeconds
		if is.Type != v1alpha1.MachineDeploymentProgressing || is.Status != v1alpha1.ConditionTrue || limit == nil {
			continue
		}
		if at := is.LastUpdateTime.Add(time.Duration(*limit) * time.Second); at.After(e.now) {
			e.Next(at, stalls)
		}
	}
	e.Why(rolling, "", time.Time{}, "{count}", strings.Join(sets, ", "), "{are}", messages.Are(old), "{bounds}", e.bounds())
}

func (e *poolExplainer) bounds() string {
	strategy := e.Deployment.Spec.Strategy
	if strategy.Type != "" && strategy.Type != v1alpha1.RollingUpdateMachineDeploymentStrategyType {
		return fmt.Sprintf("the strategy is %s", strategy.Type)
	}
	rolling := ptr.Deref(strategy.RollingUpdate, v1alpha1.RollingUpdateMachineDeployment{})
	surge, unavailable := intstr.ValueOrDefault(rolling.MaxSurge, intstr.FromInt32(1)), intstr.ValueOrDefault(rolling.MaxUnavailable, intstr.FromInt32(1))
	return fmt.Sprintf("maxSurge is %s, maxUnavailable %s", surge, unavailable)
}

// remarks says what holds nothing up. Of overlapping selectors a deployment speaks for its sets.
func (e *poolExplainer) remarks() {
	overlaps := false
	if e.Kind == KindDeployment {
		for _, condition := range e.Deployment.Status.Conditions {
			if statement := byType[condition.Type]; statement.Text != "" {
				e.Why(statement, "", condition.LastTransitionTime.Time, "{text}", condition.Message)
				overlaps = overlaps || statement.Cause == report.SelectorOverlap
			}
		}
	}
	for _, set := range e.Sets {
		if is := setCondition(set, v1alpha1.MachineSetSelectorOverlap); is != nil && !overlaps {
			e.Say(report.SelectorOverlap, e.named(set), is.LastTransitionTime.Time, is.Message)
		}
	}
}

func (e *poolExplainer) deleting() {
	e.Since = e.object.GetDeletionTimestamp().Time
	what, owned := "the set", "its machines"
	if e.Kind == KindDeployment {
		what, owned = "the deployment", "its machine sets"
	}
	if slices.Contains(e.object.GetFinalizers(), metav1.FinalizerOrphanDependents) {
		e.Why(orphaning, "", e.Since, "{what}", owned, "{finalizer}", metav1.FinalizerOrphanDependents)
		e.Conclude(report.Deleting, "is being deleted, and leaves "+owned, e.Report.Why)
		return
	}
	failed := e.undeletable()
	if unlisted := e.unlisted(); unlisted != "" && !failed {
		e.Conclude(report.Deleting, "is being deleted. It cannot be told what it waits for: "+unlisted+" cannot be read", nil)
		return
	}
	leaves := slices.DeleteFunc(slices.Clone(e.Machines), func(machine *v1alpha1.Machine) bool { return !leaving(machine) })
	e.troubled(leaves)
	if more := len(e.Machines) - len(leaves); more > 0 {
		others := ""
		if len(leaves) > 0 && !failed {
			others = ": many are not deleted all at once"
		}
		e.Why(notDeleted, "", time.Time{}, "{count}", messages.Machines(more), "{others}", others)
	}
	if left := len(e.Machines); left > 0 {
		e.Conclude(report.Deleting, "is being deleted, and waits for "+messages.Machines(left), e.Report.Why)
		return
	}
	for _, set := range e.Sets {
		if e.Kind == KindDeployment {
			e.remaining(set)
		}
	}
	e.Held(foreign(e.object), "", what, e.object)
	e.Conclude(report.Deleting, "is being deleted", e.Report.Why)
}

// undeletable says what keeps the manager from deleting, and reports whether something does. What a
// deployment says of its rollout is older than its deletion, and what sets say is said of them.
func (e *poolExplainer) undeletable() bool {
	known := len(e.Report.Why)
	for _, set := range e.Sets {
		e.undeleted(set)
	}
	if e.Kind == KindDeployment {
		for _, is := range e.Deployment.Status.Conditions {
			failure := is.Type == v1alpha1.MachineDeploymentReplicaFailure && is.Status == v1alpha1.ConditionTrue
			if failure && is.Reason == v1alpha1.DeploymentReasonSetUpdateError {
				e.Say(report.ReplicaFailure, "", is.LastTransitionTime.Time, is.Message)
			}
		}
	}
	return len(e.Report.Why) > known
}

// undeleted says what keeps the deletion of a set's Machines from beginning. What could not be
// created does not matter any more.
func (e *poolExplainer) undeleted(set *v1alpha1.MachineSet) {
	if e.staying(set) {
		e.failing(set, v1alpha1.MachineSetReasonFailedCreate)
	}
}

// staying reports whether a set has Machines whose deletion has not begun.
func (e *poolExplainer) staying(set *v1alpha1.MachineSet) bool {
	if e.MachinesUnread {
		return set.Status.Replicas > 0
	}
	return slices.ContainsFunc(e.Of(set), func(machine *v1alpha1.Machine) bool { return !leaving(machine) })
}

func (e *poolExplainer) remaining(set *v1alpha1.MachineSet) {
	holders := foreign(set)
	if !leaving(set) || len(holders) == 0 {
		e.Why(setRemains, "", e.Since, "{set}", set.Name)
		return
	}
	e.Held(holders, e.named(set), e.named(set), set)
}

func foreign(object metav1.Object) []string {
	return slices.DeleteFunc(slices.Clone(object.GetFinalizers()), func(f string) bool { return f == v1alpha1.FinalizerMCM })
}
