package pool

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/internal/observe/explain"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
	"github.com/millwright-dev/millwright/internal/pool/restore"
	"github.com/millwright-dev/millwright/internal/pool/revision"
	"github.com/millwright-dev/millwright/internal/pool/scale"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// set adds why a set does not have its desired Machines.
func (e *explainer) set(set *v1alpha1.MachineSet) {
	e.refused(set)
	e.awaitsMachines(set)
	e.frozen(set)
	e.createsNone(set)
	e.failing(set, "")
	if set == e.current {
		e.backOff(set)
	}
	e.minReady(set)
}

// createsNone adds that a set has a label to create no Machines, and what the label is for. If a deployment updates
// nodes in place, its earlier sets have the label until the update is completed.
func (e *explainer) createsNone(set *v1alpha1.MachineSet) {
	_, disabled := set.Labels[v1alpha1.LabelKeyMachineSetScaleUpDisabled]
	updated := e.Deployment != nil && updatedInPlace(e.Deployment) && !revision.Same(&set.Spec.Template, &e.Deployment.Spec.Template)
	switch {
	case !disabled:
	case !updated:
		e.Why(noScaleUp, e.named(set), time.Time{}, "{set}", set.Name, "{label}", v1alpha1.LabelKeyMachineSetScaleUpDisabled)
	case e.Kind == explain.KindSet:
		e.Why(updatesOnly, "", time.Time{})
	}
}

// awaitsMachines adds that a set waits for Machines that are restored from a backup.
func (e *explainer) awaitsMachines(set *v1alpha1.MachineSet) {
	if !restore.Waits(set) {
		return
	}
	e.Next(restore.Until(set), restoreTimeout)
	e.Why(awaitsMachines, e.named(set), time.Time{}, "{desired}", fmt.Sprint(set.Spec.Replicas), "{set}", set.Name, "{annotation}", v1alpha1.AnnotationKeyAwaitsRestoreUntil)
}

// named returns the name of a set in a finding about its deployment.
func (e *explainer) named(set *v1alpha1.MachineSet) string {
	if e.Kind == explain.KindSet {
		return ""
	}
	return "MachineSet " + set.Name
}

// refused adds that the set's spec is invalid, so that the manager does nothing for the set.
func (e *explainer) refused(set *v1alpha1.MachineSet) {
	if is := explain.SetCondition(set, v1alpha1.MachineSetReplicaFailure); is != nil && is.Reason == v1alpha1.MachineSetReasonInvalidSpec {
		e.Why(invalid, e.named(set), is.LastTransitionTime.Time, "{text}", is.Message)
	}
}

// failing adds which operations of a set fail, unless the reason is except.
func (e *explainer) failing(set *v1alpha1.MachineSet, except string) {
	is := explain.SetCondition(set, v1alpha1.MachineSetReplicaFailure)
	if is != nil && is.Reason != v1alpha1.MachineSetReasonInvalidSpec && is.Reason != except {
		e.Quote(report.ReplicaFailure, e.named(set), is.LastTransitionTime.Time, is.Reason+": "+is.Message)
	}
}

func (e *explainer) frozen(set *v1alpha1.MachineSet) {
	is := explain.SetCondition(set, v1alpha1.MachineSetFrozen)
	switch {
	case is == nil && !scale.Frozen(set):
		return
	case is == nil:
		is = &v1alpha1.MachineSetCondition{Message: "its label " + v1alpha1.LabelKeyFreeze + " is True"}
	}
	object := "{machinesets} " + set.Name
	if e.Deployment != nil {
		object = "{machinedeployments} " + e.Deployment.Name
	}
	e.Next(time.Time{}, unfreezes)
	e.Why(frozen, e.named(set), is.LastTransitionTime.Time, "{text}", is.Message, "{object}", e.Text(object), "{annotation}", v1alpha1.AnnotationKeyUnfreeze)
}

// backOff adds how long a set waits because its Machines keep failing. This is only in the set's event. A manager
// that started after the event does not wait.
func (e *explainer) backOff(set *v1alpha1.MachineSet) {
	event := e.Events.Newest(explain.KindSet, func(event *corev1.Event) bool { return report.On(event, set.Name, set.UID) }, "BackOff")
	if event == nil || report.LeaderSince(e.Lease).After(report.Time(event)) {
		return
	}
	until, err := time.Parse(time.RFC3339, event.Annotations[v1alpha1.EventAnnotationUntil])
	if err != nil || !until.After(e.now) {
		return
	}
	statement := backOff
	code := event.Annotations[v1alpha1.EventAnnotationCode]
	if code != "" {
		statement.Advice = explain.AdviceFor(codes.StringToCode(code), event.Message, true)
	} else if event.Annotations[v1alpha1.EventAnnotationObjects] != "" {
		statement.Advice = neverJoined
	}
	found := e.Finding(statement, e.named(set), report.Time(event), "{text}", report.BackOffText(event.Message), "{class}", set.Spec.Template.Spec.Class.Name)
	found.Code = code
	e.Add(found)
	e.Next(until, nextMade)
}

func (e *explainer) minReady(set *v1alpha1.MachineSet) {
	wait := time.Duration(set.Spec.MinReadySeconds) * time.Second
	if wait == 0 || set.Status.AvailableReplicas >= set.Status.ReadyReplicas {
		return
	}
	waiting, left, f := 0, time.Duration(0), scale.Facts{Set: set, EnforceMinReady: true, Now: e.now}
	for _, machine := range e.Of(set) {
		if in := scale.AvailableIn(machine, f); usable(machine) && in > 0 {
			waiting++
			left = max(left, in)
		}
	}
	if waiting > 0 {
		e.Why(minReady, e.named(set), time.Time{}, "{count}", messages.Machines(waiting), "{wait}", messages.Duration(wait))
		e.Next(e.now.Add(left), lastReady)
	}
}
