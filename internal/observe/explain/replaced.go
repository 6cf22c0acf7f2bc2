package explain

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
	"github.com/millwright-dev/millwright/internal/pool/deletion"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

func (e *explainer) gone() {
	traced := slices.ContainsFunc(e.Events, func(event corev1.Event) bool {
		return event.InvolvedObject.Kind == KindMachine && event.InvolvedObject.Name == e.Key.Name || e.about(&event)
	})
	if !traced && len(e.failures()) == 0 {
		e.Report.Why = nil
		e.Conclude(report.NotFound, "does not exist, and no events mention it", nil)
		e.Advise(eventsGone)
		e.Similar(e.Names, e.Key.Name, "machines")
		return
	}
	if deleted := e.Events.Newest(KindMachine, e.own, "Deleted"); deleted != nil {
		e.Since = report.Time(deleted)
	}
	e.replaced()
	e.Conclude(report.Gone, "no longer exists", e.Replaced)
}

// replaced adds why the Machine was deleted. It uses the most reliable source that is available.
func (e *explainer) replaced() {
	bySet := e.Events.Newest(KindSet, e.about, "SuccessfulDelete")
	if bySet != nil && report.CauseOf(bySet) != "" {
		e.fromSet(bySet)
		return
	}
	for _, source := range []func(){e.fromMachine, e.fromTraces, e.fromFailures} {
		if source(); len(e.Replaced) > 0 {
			return
		}
	}
	if bySet != nil {
		e.Because(setDeletedIt, "", report.Time(bySet), "{set}", bySet.InvolvedObject.Name, "{text}", bySet.Message)
		return
	}
	e.Because(unexplained, "", time.Time{})
}

// fromSet takes the cause from the event of the set that deleted the Machine. If the Machine was surplus, the
// deployment's events have more details.
func (e *explainer) fromSet(event *corev1.Event) {
	set, at := event.InvolvedObject.Name, report.Time(event)
	_, why, _ := strings.Cut(event.Message, messages.BeforeReason)
	statement, known := byCause[report.CauseOf(event)]
	if !known {
		statement = setDeletedSurplus
		e.fromDeployment(chosenByName, e.Events.Newest(KindDeployment, e.about, "MachineMarked"))
	}
	e.Because(statement, "", at, "{set}", set, "{text}", strings.TrimPrefix(why, messages.Failed))
	if !known {
		e.fromDeployment(scaledDown, e.Events.Newest(KindDeployment, func(scaled *corev1.Event) bool {
			return report.ScaledDown(scaled, set) && !report.Time(scaled).After(at)
		}))
	}
}

func (e *explainer) fromDeployment(statement report.Statement, event *corev1.Event) {
	if event != nil {
		e.Because(statement, KindDeployment+" "+event.InvolvedObject.Name, report.Time(event), "{text}", event.Message)
	}
}

// fromMachine takes the cause from events on the Machine, which exist longer than it. It ignores failed creations,
// because they are retried, and failures before the Machine joined.
func (e *explainer) fromMachine() {
	if event := e.Events.Newest(KindMachine, e.own, "NodeDeleted"); event != nil {
		e.Because(nodeDeleted, "", report.Time(event), "{text}", event.Message)
		return
	}
	event := e.Events.Newest(KindMachine, e.own, "FailedHealth", "FailedJoin", "Joined")
	if event != nil && event.Reason != "Joined" {
		e.Because(failedBefore, "", report.Time(event), "{text}", event.Message)
	}
}

// fromFailures takes the cause from the lists of failed machines in the status of the set and the deployment.
func (e *explainer) fromFailures() {
	for _, failed := range e.failures() {
		if last := failed.LastOperation; last.State == v1alpha1.MachineStateFailed && last.Type != v1alpha1.MachineOperationDelete {
			e.Because(failedLast, "MachineSet "+failed.OwnerRef, last.LastUpdateTime.Time, "{text}", last.Description)
			return
		}
	}
}

// failures returns the Machine's entries in the lists of failed machines of the set and the deployment.
func (e *explainer) failures() []v1alpha1.MachineSummary {
	var all []v1alpha1.MachineSummary
	if set := e.Set; set != nil && set.Status.FailedMachines != nil {
		all = slices.Clone(*set.Status.FailedMachines)
	}
	if deployment := e.Deployment; deployment != nil {
		for _, failed := range deployment.Status.FailedMachines {
			if failed != nil { // a null in the list
				all = append(all, *failed)
			}
		}
	}
	return slices.DeleteFunc(all, func(failed v1alpha1.MachineSummary) bool { return failed.Name != e.Key.Name })
}

// fromTraces infers the cause from objects if there are no events.
func (e *explainer) fromTraces() {
	set, m, n := e.Set, e.Machine, e.Target.Node
	switch {
	case set != nil && report.IsDeleting(set):
		e.Because(setIsDeleted, "MachineSet "+set.Name, set.DeletionTimestamp.Time)
	case m == nil:
	case n != nil && report.IsDeleting(n) && n.DeletionTimestamp.Before(m.DeletionTimestamp):
		e.Because(nodeIsDeleted, "Node "+n.Name, n.DeletionTimestamp.Time)
	case deletion.IsFirst(m):
		marked, _ := time.Parse(time.RFC3339, m.Annotations[v1alpha1.AnnotationKeyMarkedForDeletionTime])
		e.Because(lowestPriority, "", marked, "{annotation}", v1alpha1.AnnotationKeyMachinePriority)
	default:
		e.fromNode()
		e.fromRevision()
	}
}

// fromNode takes the cause from the condition that the deletion set on the node, or from the node's earlier
// conditions.
func (e *explainer) fromNode() {
	for _, condition := range e.conditions() {
		if condition.Type == v1alpha1.NodeTerminationCondition && condition.Reason == v1alpha1.NodeUnhealthy {
			e.Because(nodeWasUnhealthy, "", condition.LastTransitionTime.Time)
		}
	}
	for _, condition := range e.conditions() {
		if condition.LastTransitionTime.Before(e.Machine.DeletionTimestamp) && e.unhealthy(condition) {
			e.Because(conditionWasBad, "", condition.LastTransitionTime.Time, "{type}", string(condition.Type), "{status}", string(condition.Status), "{reason}", condition.Reason)
		}
	}
}

// fromRevision infers from the set's revision that a rollout replaced the Machine.
func (e *explainer) fromRevision() {
	set, deployment := e.Set, e.Deployment
	if set == nil || deployment == nil || len(e.Replaced) > 0 {
		return
	}
	was, is := set.Annotations[v1alpha1.AnnotationKeyRevision], deployment.Annotations[v1alpha1.AnnotationKeyRevision]
	if was != is && is != "" {
		e.Because(oldRevision, "MachineDeployment "+deployment.Name, time.Time{}, "{was}", was, "{is}", is)
	}
}
