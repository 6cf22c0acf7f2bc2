package pool

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/observe/explain"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
	"github.com/millwright-dev/millwright/internal/pool/counts"
	"github.com/millwright-dev/millwright/internal/pool/reserve"
	"github.com/millwright-dev/millwright/internal/pool/restore"
	"github.com/millwright-dev/millwright/internal/pool/rollout/status"
	"github.com/millwright-dev/millwright/internal/reconcile/cascade/orphaning"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// deployment adds why a deployment does not have its desired Machines. This includes problems with the deletion of
// Machines of earlier sets without desired replicas.
func (e *explainer) deployment() {
	for _, is := range e.problems() {
		if statement, known := byReason[is.Reason]; known {
			e.condition(statement, is)
		}
	}
	e.awaitsSets()
	e.waiting()
	e.notObserved(e.Deployment.Status.ObservedGeneration)
	if e.current != nil {
		e.set(e.current)
	}
	for _, set := range e.earlier() {
		if set.Spec.Replicas > 0 {
			e.set(set)
		} else if e.staying(set) {
			e.refused(set)
			e.undeleted(set)
		}
	}
}

// problems returns the conditions of the explained deployment that report a problem. It omits Available, because
// the numbers show whether enough Machines are available, and an exceeded progress deadline, because that is not a
// cause.
func (e *explainer) problems() []v1alpha1.MachineDeploymentCondition {
	if e.Kind == explain.KindSet {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(e.Deployment.Status.Conditions), func(is v1alpha1.MachineDeploymentCondition) bool {
		switch is.Type {
		case v1alpha1.MachineDeploymentAvailable:
			return true
		case v1alpha1.MachineDeploymentProgressing:
			blocked := is.Reason == v1alpha1.DeploymentReasonUpdateBlocked
			return is.Status != v1alpha1.ConditionFalse && !blocked || is.Reason == v1alpha1.DeploymentReasonTimedOut
		}
		return is.Status != v1alpha1.ConditionTrue
	})
}

func (e *explainer) condition(statement report.Statement, is v1alpha1.MachineDeploymentCondition) {
	e.Why(statement, "", is.LastTransitionTime.Time, "{text}", cmp.Or(is.Message, is.Reason))
}

// awaitsSets adds that a deployment waits for sets that are restored from a backup.
func (e *explainer) awaitsSets() {
	if restore.Waits(e.Deployment) {
		e.Next(restore.Until(e.Deployment), restoreTimeout)
		e.Why(awaitsSets, "", time.Time{}, "{annotation}", v1alpha1.AnnotationKeyAwaitsRestoreUntil)
	}
}

// waiting adds what a rollout or a rollback waits for before it starts.
func (e *explainer) waiting() {
	rolls, back := e.old() > 0 || e.current == nil && !e.SetsUnread, e.Deployment.Spec.RollbackTo
	if e.Deployment.Spec.Paused && (rolls || back != nil) {
		since := time.Time{}
		if is := status.Progress(e.Deployment.Status); is.Reason == v1alpha1.DeploymentReasonPaused {
			since = is.LastTransitionTime.Time
		}
		e.Why(paused, "", since)
	}
	switch {
	case back == nil:
	case e.Deployment.Spec.Paused:
		e.Why(pausedRollback, "", time.Time{})
	default:
		e.Why(pendingRollback, "", time.Time{}, "{revision}", RollbackRevision(back))
	}
}

// RollbackRevision returns a phrase for the revision of a rollback.
func RollbackRevision(to *v1alpha1.RollbackConfig) string {
	if to.Revision == 0 {
		return "the previous revision"
	}
	return fmt.Sprintf("revision %d", to.Revision)
}

func (e *explainer) earlier() []*v1alpha1.MachineSet {
	return slices.DeleteFunc(slices.Clone(e.Sets), func(set *v1alpha1.MachineSet) bool { return set == e.current })
}

// old returns how many Machines with earlier templates are to be replaced.
func (e *explainer) old() int32 {
	return e.Pool.Exist - e.Pool.Updated - (e.Pool.Preserved - e.newest.Preserved)
}

// late adds facts about a rollout that are not causes of its state: back-offs of earlier sets, which are being
// replaced, and an exceeded progress deadline.
func (e *explainer) late() {
	for _, set := range e.earlier() {
		if set.Spec.Replicas > 0 {
			e.backOff(set)
		}
	}
	if is := status.Progress(e.Deployment.Status); is.Reason == v1alpha1.DeploymentReasonTimedOut {
		seconds := ptr.Deref(e.Deployment.Spec.ProgressDeadlineSeconds, 0)
		e.Why(late, "", is.LastUpdateTime.Time, "{text}", is.Message, "{seconds}", fmt.Sprint(seconds))
	}
}

// rollout adds the progress of a rollout.
func (e *explainer) rollout() {
	old := e.old()
	switch {
	case old == 0 || e.Deployment.Spec.Paused:
		return
	case e.change.DryRun():
		e.Why(classDryRun, "", time.Time{}, "{text}", e.change.Summary(), "{annotation}", v1alpha1.AnnotationKeyUpdateStrategy)
		return
	case e.change.Holds():
		e.Why(classAsked, "", time.Time{}, "{text}", e.change.Summary())
		return
	case e.change.Left() > 0:
		e.Why(classFollowed, "", time.Time{}, "{text}", e.change.Summary(), "{bounds}", e.bounds())
		return
	}
	var sets []string
	for _, part := range e.Pool.Sets {
		if left := part.Exist - part.Preserved; left > 0 && !part.Current {
			sets = append(sets, fmt.Sprintf("%s of %s (revision %s)", messages.Machines(left), part.Name, part.Revision))
		}
	}
	if e.SetsUnread {
		sets = []string{messages.Machines(old)}
	}
	if at := Deadline(e.Facts, e.now); at.After(e.now) {
		e.Next(at, stalls)
	}
	changed := "replaced"
	if updatedInPlace(e.Deployment) {
		changed = "updated in place"
	}
	e.Why(rolling, "", time.Time{}, "{count}", strings.Join(sets, ", "), "{are}", messages.Are(old), "{changed}", changed, "{bounds}", e.bounds())
}

// Deadline returns when a rollout without progress exceeds its deadline. It returns now if the deadline is over,
// and zero if there is no deadline.
func Deadline(f Facts, now time.Time) time.Time {
	left := status.DeadlineIn(f.Deployment, f.Deployment.Status, now)
	if left == 0 {
		return time.Time{}
	}
	return now.Add(left - time.Second)
}

// updatedInPlace reports whether a deployment updates nodes in place and keeps their Machines.
func updatedInPlace(d *v1alpha1.MachineDeployment) bool {
	return d.Spec.Strategy.Type == v1alpha1.InPlaceUpdateMachineDeploymentStrategyType && d.Spec.Strategy.InPlaceUpdate != nil
}

func (e *explainer) bounds() string {
	strategy := e.Deployment.Spec.Strategy
	config, by := ptr.Deref(strategy.RollingUpdate, v1alpha1.RollingUpdateMachineDeployment{}).UpdateConfiguration, ""
	switch {
	case updatedInPlace(e.Deployment):
		config, by = strategy.InPlaceUpdate.UpdateConfiguration, fmt.Sprintf(", orchestrationType %s", strategy.InPlaceUpdate.OrchestrationType)
	case strategy.Type != "" && strategy.Type != v1alpha1.RollingUpdateMachineDeploymentStrategyType:
		return fmt.Sprintf("the strategy is %s", strategy.Type)
	}
	surge, unavailable := intstr.ValueOrDefault(config.MaxSurge, intstr.FromInt32(1)), intstr.ValueOrDefault(config.MaxUnavailable, intstr.FromInt32(1))
	return fmt.Sprintf("maxSurge is %s, maxUnavailable %s%s", surge, unavailable, by)
}

// otherProblems adds problems in conditions that no other finding mentions. If the selectors of a deployment
// overlap, the overlaps of its sets are omitted.
func (e *explainer) otherProblems() {
	e.capped()
	e.otherClasses()
	for _, is := range e.problems() {
		statement, known := byType[is.Type]
		if _, handled := byReason[is.Reason]; !handled && !(known && e.hasCause(statement.Cause)) {
			e.condition(statement, is)
		}
	}
	overlaps := e.hasCause(report.SelectorOverlap)
	for _, set := range e.Sets {
		if is := explain.SetCondition(set, v1alpha1.MachineSetSelectorOverlap); is != nil && !overlaps {
			e.Quote(report.SelectorOverlap, e.named(set), is.LastTransitionTime.Time, is.Message)
		}
	}
}

// capped adds that a deployment has fewer Machines in excess than requested because of its autoscaler's maximum.
func (e *explainer) capped() {
	if e.Kind == explain.KindSet {
		return
	}
	requested, has := reserve.Requested(e.Deployment), reserve.Excess(e.Deployment)
	if most, given := reserve.Most(e.Deployment); given && has < requested {
		e.Why(fewerInExcess, "", time.Time{}, "{requested}", fmt.Sprint(requested), "{excess}", fmt.Sprint(has), "{most}", fmt.Sprint(most))
	}
}

func (e *explainer) deleting() {
	e.Since = e.object.GetDeletionTimestamp().Time
	what, owned := "the set", "its machines"
	if e.Kind == explain.KindDeployment {
		what, owned = "the deployment", "its machine sets"
	}
	if orphaning.Pending(e.object) {
		e.Why(releasing, "", e.Since, "{what}", owned, "{finalizer}", metav1.FinalizerOrphanDependents)
		e.Conclude(report.Deleting, "is being deleted, but keeps "+owned, e.Report.Why)
		return
	}
	failed := e.undeletable()
	if unlisted := e.unlisted(); unlisted != "" && !failed {
		e.Conclude(report.Deleting, "is being deleted; the remaining work is unknown because "+unlisted+" cannot be read", nil)
		return
	}
	leaves := slices.DeleteFunc(slices.Clone(e.Machines), counts.Active)
	e.unhealthy(leaves)
	if more := len(e.Machines) - len(leaves); more > 0 {
		others := ""
		if len(leaves) > 0 && !failed {
			others = "; large numbers are deleted in batches"
		}
		e.Why(notDeleted, "", time.Time{}, "{count}", messages.Machines(more), "{others}", others)
	}
	if left := len(e.Machines); left > 0 {
		e.Conclude(report.Deleting, "is being deleted, and waits for "+messages.Machines(left), e.Report.Why)
		return
	}
	for _, set := range e.Sets {
		if e.Kind == explain.KindDeployment {
			e.remaining(set)
		}
	}
	e.Held(foreign(e.object), "", what, e.object)
	e.Conclude(report.Deleting, "is being deleted", e.Report.Why)
}

// undeletable adds what prevents the manager from deleting objects, and reports whether there is such a problem.
// Problems of the rollout are omitted because they are older than the deletion, and so are conditions taken over
// from sets, because these are reported for the sets.
func (e *explainer) undeletable() bool {
	known := len(e.Report.Why)
	for _, set := range e.Sets {
		e.undeleted(set)
	}
	for _, is := range e.problems() {
		if is.Type == v1alpha1.MachineDeploymentReplicaFailure && is.Reason == v1alpha1.DeploymentReasonSetUpdateError {
			e.condition(byReason[is.Reason], is)
		}
	}
	return len(e.Report.Why) > known
}

// undeleted adds why the deletion of a set's Machines does not start. Failed creations are irrelevant during a
// deletion.
func (e *explainer) undeleted(set *v1alpha1.MachineSet) {
	if e.staying(set) {
		e.failing(set, v1alpha1.MachineSetReasonFailedCreate)
	}
}

// staying reports whether a set has Machines whose deletion has not started.
func (e *explainer) staying(set *v1alpha1.MachineSet) bool {
	if e.MachinesUnread {
		return set.Status.Replicas > 0
	}
	return slices.ContainsFunc(e.Of(set), counts.Active)
}

func (e *explainer) remaining(set *v1alpha1.MachineSet) {
	holders := foreign(set)
	if !report.IsDeleting(set) || len(holders) == 0 {
		e.Why(setRemains, "", e.Since, "{set}", set.Name)
		return
	}
	e.Held(holders, e.named(set), e.named(set), set)
}

func foreign(object metav1.Object) []string {
	return slices.DeleteFunc(slices.Clone(object.GetFinalizers()), func(f string) bool { return f == v1alpha1.FinalizerMCM })
}
