package explain

import (
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// givenUpReasons are the reasons of the events with which a Machine becomes Failed, so that
// its set deletes it. That of a creation that fails is none: it is tried again.
var givenUpReasons = []string{"FailedHealth", "FailedJoin"}

// replaced says why the Machine was deleted, from the surest source on.
func (e *explainer) replaced() {
	told := e.toldBySet()
	if told == "" {
		e.fromMachineEvents()
	}
	if len(e.report.Replaced) == 0 {
		e.fromTraces()
	}
	if len(e.report.Replaced) == 0 {
		e.fromSummaries()
	}
	if len(e.report.Replaced) == 0 {
		e.because(Untold, "", time.Time{}, "nothing tells why: somebody other than its set deleted it, or the events about it have expired, which an API server keeps for an hour")
	}
}

// combined is what client-go puts before the newest of many similar events.
const combined = "(combined from similar events): "

// toldBySet takes the reason from the event of the set that deleted the Machine. It
// returns what the set said; empty if there is no such event.
func (e *explainer) toldBySet() string {
	event := e.last("MachineSet", []string{"SuccessfulDelete"}, func(event *corev1.Event) bool { return names(event.Message, e.Key.Name) })
	if event == nil {
		return ""
	}
	set, at := event.InvolvedObject.Name, timeOf(event)
	_, reason, found := strings.Cut(strings.TrimPrefix(event.Message, combined), messages.BeforeReason)
	switch failed, didFail := strings.CutPrefix(reason, messages.Failed); {
	case !found: // MCM's own event gives no reason
		e.fromMachineEvents()
		return event.Message
	case didFail:
		e.because(Failure, "", at, "machine set %s deleted it because it failed: %s", set, failed)
	case strings.HasPrefix(reason, messages.SetDeleted):
		e.because(OwnerDeleted, "", at, "machine set %s deleted it: %s", set, reason)
	case strings.HasPrefix(reason, messages.Named):
		e.because(NamedForDeletion, "", at, "machine set %s deleted it because it was named for deletion, normally by an autoscaler", set)
	default:
		e.marked()
		e.because(Surplus, "", at, "machine set %s deleted it: %s", set, reason)
		e.scaledDown(set, at)
	}
	return event.Message
}

// marked says so if the Machine was chosen by name, so that it and no other went.
func (e *explainer) marked() {
	event := e.last("MachineDeployment", []string{"MachineMarked"}, func(event *corev1.Event) bool { return names(event.Message, e.Key.Name) })
	if event != nil {
		e.because(NamedForDeletion, "MachineDeployment "+event.InvolvedObject.Name, timeOf(event), "it was chosen by name, normally by an autoscaler: %s", event.Message)
	}
}

// scaledDown says why a set had more Machines than wanted.
func (e *explainer) scaledDown(set string, before time.Time) {
	event := e.last("MachineDeployment", []string{"ScalingMachineSet"}, func(event *corev1.Event) bool {
		return strings.Contains(event.Message, "Scaled down") && names(event.Message, set) && !timeOf(event).After(before)
	})
	if event != nil {
		e.because(Surplus, "MachineDeployment "+event.InvolvedObject.Name, timeOf(event), "%s", event.Message)
	}
}

// fromMachineEvents takes the reason from events on the Machine itself, which outlive it.
func (e *explainer) fromMachineEvents() {
	if event := e.last("Machine", []string{"NodeDeleted"}, e.mine); event != nil {
		e.because(NodeDeleted, "", timeOf(event), "%s", event.Message)
		return
	}
	event := e.last("Machine", slices.Concat(givenUpReasons, []string{"Joined"}), e.mine)
	if event != nil && event.Reason != "Joined" { // one that joined afterwards was well again
		e.because(Failure, "", timeOf(event), "it had failed before: %s", event.Message)
	}
}

// fromSummaries takes the reason from the lists of failed machines of set and deployment.
// A Machine that is still there is on them for what goes wrong with it now.
func (e *explainer) fromSummaries() {
	for _, summary := range e.summaries() {
		if last := summary.LastOperation; summary.Name == e.Key.Name && givenUp(last.Description) {
			e.because(Failure, "MachineSet "+summary.OwnerRef, last.LastUpdateTime.Time, "its last failure was: %s", last.Description)
			return
		}
	}
}

// summaries are the lists of failed machines of set and deployment.
func (e *explainer) summaries() []v1alpha1.MachineSummary {
	var all []v1alpha1.MachineSummary
	if set := e.Owners.Set; set != nil {
		all = append(all, deref(set.Status.FailedMachines)...)
	}
	if deployment := e.Owners.Deployment; deployment != nil {
		for _, summary := range deployment.Status.FailedMachines {
			all = append(all, deref(summary))
		}
	}
	return all
}

// givenUp reports whether a last operation is one with which a Machine becomes Failed.
func givenUp(description string) bool {
	return strings.Contains(description, messages.NeverJoined) || strings.Contains(description, messages.GivenUp)
}

// fromTraces infers the reason where no event is left.
func (e *explainer) fromTraces() {
	if set := e.Owners.Set; set != nil && !set.DeletionTimestamp.IsZero() {
		e.because(OwnerDeleted, "MachineSet "+set.Name, set.DeletionTimestamp.Time, "its machine set is being deleted")
		return
	}
	if e.Machine == nil {
		return
	}
	if n := e.Target.Node; n != nil && !n.DeletionTimestamp.IsZero() && n.DeletionTimestamp.Before(e.Machine.DeletionTimestamp) {
		e.because(NodeDeleted, "Node "+n.Name, n.DeletionTimestamp.Time, "somebody deleted its node")
		return
	}
	if priority, err := strconv.Atoi(e.Machine.Annotations[v1alpha1.AnnotationKeyMachinePriority]); err == nil && priority == 1 {
		marked, _ := time.Parse(time.RFC3339, e.Machine.Annotations[v1alpha1.AnnotationKeyMarkedForDeletionTime])
		e.because(NamedForDeletion, "", marked, "it was chosen for deletion, normally by an autoscaler: its annotation %s is 1", v1alpha1.AnnotationKeyMachinePriority)
		return
	}
	e.fromNode()
	e.fromRevision()
}

// fromNode takes the reason from what the deletion wrote on the node, or from the state
// that the node was in.
func (e *explainer) fromNode() {
	conditions := e.Machine.Status.Conditions
	if e.Target.Node != nil {
		conditions = e.Target.Node.Status.Conditions
	}
	for _, condition := range conditions {
		if condition.Type == v1alpha1.NodeTerminationCondition && condition.Reason == v1alpha1.NodeUnhealthy {
			e.because(Failure, "", condition.LastTransitionTime.Time, "its node was not healthy when it was deleted")
		}
	}
	for _, condition := range conditions {
		before := condition.LastTransitionTime.Before(e.Machine.DeletionTimestamp)
		if before && !noderef.Healthy([]corev1.NodeCondition{condition}, e.badConditions()) {
			e.because(Failure, "", condition.LastTransitionTime.Time, "its node's condition %s was %s (%s)", condition.Type, condition.Status, condition.Reason)
		}
	}
}

// fromRevision infers from the set's revision that a rollout took the Machine away.
func (e *explainer) fromRevision() {
	set, deployment := e.Owners.Set, e.Owners.Deployment
	if set == nil || deployment == nil || len(e.report.Replaced) > 0 {
		return
	}
	was, is := set.Annotations[v1alpha1.AnnotationKeyRevision], deployment.Annotations[v1alpha1.AnnotationKeyRevision]
	if was != is && is != "" {
		e.because(Surplus, "MachineDeployment "+deployment.Name, time.Time{}, "it is of revision %s, and the deployment rolls out revision %s", was, is)
	}
}
