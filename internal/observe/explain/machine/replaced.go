package machine

import (
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
)

// gone explains why there is no Machine of the name any more.
func (e *explainer) gone() {
	if !e.traced() {
		e.Report.Why = nil
		e.Conclude(report.NotFound, "does not exist, and nothing tells that it ever did", nil)
		e.Advise(eventsGone)
		e.Similar(e.Owners.Names, e.Key.Name, PoolName(e.Key.Name), "machines")
		return
	}
	if deleted := e.Facts.Events.Newest("Machine", e.own, "Deleted"); deleted != nil {
		e.Since = report.Time(deleted)
	}
	e.replaced()
	e.Conclude(report.Gone, "is gone", e.Replaced)
}

// traced reports whether anything is left of the Machine.
func (e *explainer) traced() bool {
	return slices.ContainsFunc(e.Facts.Events, func(event corev1.Event) bool {
		return event.InvolvedObject.Kind == "Machine" && event.InvolvedObject.Name == e.Key.Name || e.about(&event)
	}) || slices.ContainsFunc(e.summaries(), func(summary v1alpha1.MachineSummary) bool { return summary.Name == e.Key.Name })
}

// PoolName is a Machine's name without what its set has generated.
func PoolName(machine string) string {
	if at := strings.LastIndexByte(machine, '-'); at > 0 {
		return machine[:at+1]
	}
	return machine
}

// replaced says why the Machine was deleted, from the surest source on.
func (e *explainer) replaced() {
	event := e.Facts.Events.Newest("MachineSet", e.about, "SuccessfulDelete")
	if event != nil && report.CauseOf(event) != "" {
		e.fromSet(event)
		return
	}
	for _, source := range []func(){e.fromMachineEvents, e.fromTraces, e.fromSummaries} {
		if source(); len(e.Replaced) > 0 {
			return
		}
	}
	if event != nil {
		e.Because(setDeletedIt, "", report.Time(event), "{set}", event.InvolvedObject.Name, "{text}", report.After(report.Message(event), "): "))
		return
	}
	e.Because(unexplained, "", time.Time{})
}

// fromSet takes the reason from the event of the set that deleted the Machine.
func (e *explainer) fromSet(event *corev1.Event) {
	set, at := event.InvolvedObject.Name, report.Time(event)
	because := func(s statement, separator string) {
		e.Because(s, "", at, "{set}", set, "{text}", report.After(report.After(report.Message(event), "): "), separator))
	}
	switch report.CauseOf(event) {
	case v1alpha1.CauseMachineFailed:
		because(setDeletedFailed, "it failed: ")
	case v1alpha1.CauseOwnerDeleted:
		because(setDeletedOwner, "")
	case v1alpha1.CauseNamedForDeletion:
		because(setDeletedNamed, "")
	default:
		if marked := e.Facts.Events.Newest("MachineDeployment", e.about, "MachineMarked"); marked != nil {
			e.Because(chosenByName, "MachineDeployment "+marked.InvolvedObject.Name, report.Time(marked), "{text}", marked.Message)
		}
		because(setDeletedSurplus, "")
		e.fromScaling(set, at)
	}
}

// fromScaling says why a set had more Machines than wanted.
func (e *explainer) fromScaling(set string, before time.Time) {
	event := e.Facts.Events.Newest("MachineDeployment", func(event *corev1.Event) bool {
		return report.CauseOf(event) == v1alpha1.CauseScaledDown && report.Names(event, set) && !report.Time(event).After(before)
	})
	if event != nil {
		e.Because(scaledDown, "MachineDeployment "+event.InvolvedObject.Name, report.Time(event), "{text}", event.Message)
	}
}

// fromMachineEvents takes the reason from events on the Machine itself, which outlive it.
func (e *explainer) fromMachineEvents() {
	if event := e.Facts.Events.Newest("Machine", e.own, "NodeDeleted"); event != nil {
		e.Because(nodeDeleted, "", report.Time(event), "{text}", event.Message)
		return
	}
	// That of a creation that fails is none: it is tried again. One that joined afterwards was well again.
	event := e.Facts.Events.Newest("Machine", e.own, "FailedHealth", "FailedJoin", "Joined")
	if event != nil && event.Reason != "Joined" {
		e.Because(failedBefore, "", report.Time(event), "{text}", event.Message)
	}
}

// fromSummaries takes the reason from the lists of failed machines of set and deployment.
func (e *explainer) fromSummaries() {
	for _, summary := range e.summaries() {
		last := summary.LastOperation
		if summary.Name == e.Key.Name && last.State == v1alpha1.MachineStateFailed && last.Type != v1alpha1.MachineOperationDelete {
			e.Because(failedLast, "MachineSet "+summary.OwnerRef, last.LastUpdateTime.Time, "{text}", last.Description)
			return
		}
	}
}

// summaries are the lists of failed machines of set and deployment.
func (e *explainer) summaries() []v1alpha1.MachineSummary {
	var all []v1alpha1.MachineSummary
	if set := e.Owners.Set; set != nil && set.Status.FailedMachines != nil {
		all = append(all, *set.Status.FailedMachines...)
	}
	if deployment := e.Owners.Deployment; deployment != nil {
		for _, summary := range deployment.Status.FailedMachines {
			if summary != nil {
				all = append(all, *summary)
			}
		}
	}
	return all
}

// fromTraces infers the reason where no event is left.
func (e *explainer) fromTraces() {
	if set := e.Owners.Set; set != nil && !set.DeletionTimestamp.IsZero() {
		e.Because(setIsDeleted, "MachineSet "+set.Name, set.DeletionTimestamp.Time)
		return
	}
	if e.Machine == nil {
		return
	}
	if n := e.Target.Node; n != nil && !n.DeletionTimestamp.IsZero() && n.DeletionTimestamp.Before(e.Machine.DeletionTimestamp) {
		e.Because(nodeIsDeleted, "Node "+n.Name, n.DeletionTimestamp.Time)
		return
	}
	if priority, err := strconv.Atoi(e.Machine.Annotations[v1alpha1.AnnotationKeyMachinePriority]); err == nil && priority == 1 {
		marked, _ := time.Parse(time.RFC3339, e.Machine.Annotations[v1alpha1.AnnotationKeyMarkedForDeletionTime])
		e.Because(lowestPriority, "", marked, "{annotation}", v1alpha1.AnnotationKeyMachinePriority)
		return
	}
	e.fromNode()
	e.fromRevision()
}

// fromNode takes the reason from what the deletion wrote on the node, or from the state
// that the node was in.
func (e *explainer) fromNode() {
	for _, condition := range e.conditions() {
		if condition.Type == v1alpha1.NodeTerminationCondition && condition.Reason == v1alpha1.NodeUnhealthy {
			e.Because(nodeWasUnhealthy, "", condition.LastTransitionTime.Time)
		}
	}
	for _, condition := range e.conditions() {
		before := condition.LastTransitionTime.Before(e.Machine.DeletionTimestamp)
		if before && !noderef.Healthy([]corev1.NodeCondition{condition}, e.badConditions()) {
			e.Because(conditionWasBad, "", condition.LastTransitionTime.Time, "{type}", string(condition.Type), "{status}", string(condition.Status), "{reason}", condition.Reason)
		}
	}
}

// fromRevision infers from the set's revision that a rollout took the Machine away.
func (e *explainer) fromRevision() {
	set, deployment := e.Owners.Set, e.Owners.Deployment
	if set == nil || deployment == nil || len(e.Replaced) > 0 {
		return
	}
	was, is := set.Annotations[v1alpha1.AnnotationKeyRevision], deployment.Annotations[v1alpha1.AnnotationKeyRevision]
	if was != is && is != "" {
		e.Because(oldRevision, "MachineDeployment "+deployment.Name, time.Time{}, "{was}", was, "{is}", is)
	}
}
