package pool

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/internal/observe/explain/machine"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// set explains a set that is asked about.
func (e *explainer) set(set *v1alpha1.MachineSet) {
	refused := e.invalid(set)
	e.held(set)
	e.backOff(set)
	if !refused {
		e.unseen(set, set.Status.ObservedGeneration)
	}
	e.minReady(set)
}

// condition returns the first condition of a set that is True and fits.
func condition(set *v1alpha1.MachineSet, fits func(v1alpha1.MachineSetCondition) bool) (v1alpha1.MachineSetCondition, bool) {
	for _, condition := range set.Status.Conditions {
		if condition.Status == v1alpha1.ConditionTrue && fits(condition) {
			return condition, true
		}
	}
	return v1alpha1.MachineSetCondition{}, false
}

// reasonInvalidSpec is that of conditions which say that nothing is done before the spec is
// corrected.
const reasonInvalidSpec = "InvalidSpec"

// invalid says so if nothing is done about a set before its spec is corrected.
func (e *explainer) invalid(set *v1alpha1.MachineSet) bool {
	is, found := condition(set, func(c v1alpha1.MachineSetCondition) bool { return c.Reason == reasonInvalidSpec })
	if found {
		e.Why(invalidSet, e.named(set), is.LastTransitionTime.Time, "{text}", is.Message)
	}
	return found
}

// named is a set in a finding about another object.
func (e *explainer) named(set *v1alpha1.MachineSet) string {
	if e.Kind == Set {
		return ""
	}
	return "MachineSet " + set.Name
}

// held says what keeps a set from creating Machines.
func (e *explainer) held(set *v1alpha1.MachineSet) {
	e.frozen(set)
	if label := v1alpha1.LabelKeyMachineSetScaleUpDisabled; hasLabel(set, label) {
		e.Why(noScaleUp, e.named(set), time.Time{}, "{set}", set.Name, "{label}", label)
	}
	e.failures(set, "")
}

func hasLabel(set *v1alpha1.MachineSet, label string) bool {
	_, has := set.Labels[label]
	return has
}

// failures says what the manager could not do for a set, but for failures of a reason. That its
// spec is refused is said elsewhere.
func (e *explainer) failures(set *v1alpha1.MachineSet, except string) {
	is, failed := condition(set, func(c v1alpha1.MachineSetCondition) bool {
		return c.Type == v1alpha1.MachineSetReplicaFailure && c.Reason != reasonInvalidSpec && c.Reason != except
	})
	if failed {
		e.Why(setFailure, e.named(set), is.LastTransitionTime.Time, "{reason}", is.Reason, "{text}", is.Message)
	}
}

func (e *explainer) frozen(set *v1alpha1.MachineSet) {
	is, found := condition(set, func(c v1alpha1.MachineSetCondition) bool { return c.Type == v1alpha1.MachineSetFrozen })
	if !found && set.Labels[v1alpha1.LabelKeyFreeze] != "True" {
		return
	}
	text, resource, object := is.Message, "{machinesets}", set.Name
	if !found {
		text = "its label " + v1alpha1.LabelKeyFreeze + " is True"
	}
	if e.Deployment != nil {
		resource, object = "{machinedeployments}", e.Deployment.Name
	}
	e.Next(time.Time{}, thaws)
	e.Why(frozen, e.named(set), is.LastTransitionTime.Time, "{text}", text, "{resource}", e.Text(resource), "{object}", object, "{annotation}", v1alpha1.AnnotationKeyUnfreeze)
}

// longestBackOff is the longest time for which a set waits.
const longestBackOff = 5 * time.Minute

// backOff says until when a set waits whose Machines keep failing. Only the event tells: a manager
// forgets it when it ends. client-go combines events that come often, without their annotations;
// by then the wait is the longest.
func (e *explainer) backOff(set *v1alpha1.MachineSet) {
	event := e.Facts.Events.Newest(Set, func(event *corev1.Event) bool { return event.InvolvedObject.Name == set.Name }, "BackOff")
	if event == nil || report.Led(e.Lease).After(report.Time(event)) {
		return
	}
	until, err := time.Parse(time.RFC3339, event.Annotations[v1alpha1.EventAnnotationUntil])
	if err != nil {
		until = report.Time(event).Add(longestBackOff)
	}
	if !until.After(e.now) {
		return
	}
	last := event.Annotations[v1alpha1.EventAnnotationObjects]
	code, coded := event.Annotations[v1alpha1.EventAnnotationCode]
	found := report.Finding{Cause: report.BackOff, Object: e.named(set), Code: code, Since: report.Time(event), Text: e.Text(backOff.Text, "{text}", backOffText(report.Message(event)))}
	switch {
	case coded:
		found.Remedy = e.Text(machine.Advice(codes.StringToCode(code), true), "{class}", set.Spec.Template.Spec.Class.Name)
	case last != "":
		found.Remedy = e.Text(neverJoined)
	}
	e.Add(found)
	e.Next(until, nextMade)
}

// backOffText is what a set says of a wait, without what is said beside it: when it ends, and
// the name of the Machine that failed last a second time.
func backOffText(message string) string {
	why, rest, _ := strings.Cut(message, ": ")
	_, failed, found := strings.Cut(rest, ". The last was ")
	if !found {
		return why
	}
	name, said, _ := strings.Cut(failed, ": ")
	return why + ", at last " + name + ": " + report.Reported(said, name)
}

// minReady says so if Machines run that do not count as available yet.
func (e *explainer) minReady(set *v1alpha1.MachineSet) {
	wait := time.Duration(set.Spec.MinReadySeconds) * time.Second
	if wait == 0 || set.Status.AvailableReplicas >= set.Status.ReadyReplicas {
		return
	}
	waiting, last := 0, time.Time{}
	for _, machine := range e.of(set) {
		if at := readySince(machine).Add(wait); usable(machine) && at.After(e.now) {
			waiting++
			if at.After(last) {
				last = at
			}
		}
	}
	if waiting > 0 {
		e.Why(minReady, e.named(set), time.Time{}, "{count}", messages.Machines(waiting), "{wait}", messages.Duration(wait))
		e.Next(last, lastReady)
	}
}

// readySince is when the node of a Machine turned ready or, without one or by a clock that is
// ahead, when the Machine came into its phase.
func readySince(machine *v1alpha1.Machine) time.Time {
	since := machine.Status.CurrentStatus.LastUpdateTime
	for _, condition := range machine.Status.Conditions {
		if condition.Type == corev1.NodeReady && (since.IsZero() || condition.LastTransitionTime.Before(&since)) {
			since = condition.LastTransitionTime
		}
	}
	return since.Time
}
