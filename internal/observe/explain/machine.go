// Package explain says why Machines are as they are: why one is not Running, why it was replaced,
// what its deletion waits for. Package pool says why sets and deployments do not have the Machines that
// they want.
//
// Both are pure: gather reads the facts, they make findings of them, whose words are the tables in
// words.go, and report prints them. They know what objects and events say, and nothing that only a
// running manager remembers: docs/design/0010-explain.md lists what that leaves out.
package explain

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

type explainer struct {
	MachineFacts
	*report.Builder
	now time.Time
	// last is the last operation, which the manager reported at a time, and says is its
	// description for people.
	last     v1alpha1.LastOperation
	reported time.Time
	says     string
	// begin is when the creation or deletion began.
	begin time.Time
	// note is the manager's newest annotated event on the Machine since then; empty if there is
	// none.
	note corev1.Event
}

// Machine explains a Machine: why it is not Running, why it was deleted, and what its deletion waits
// for.
func Machine(facts MachineFacts, now time.Time) report.Report {
	e := &explainer{MachineFacts: facts, now: now}
	id, console := identify(facts), ""
	if e.VM != nil {
		console = fmt.Sprintf(" (millwright vm console -n %s %s)", e.VM.Namespace, e.VM.Name)
	}
	e.Builder = report.New(report.Report{
		Namespace: e.Key.Namespace, Machine: e.Key.Name, At: now, Unread: e.Unread, Identity: id,
	}, "Machine "+e.Key.String(), "{name}", e.Key.Name, "{class}", id.Class, "{node}", cmp.Or(id.Node, e.Key.Name),
		"{console}", console, "{provider ID}", id.ProviderID)
	e.Manager(e.Lease, "machines")
	if m := e.Machine; m == nil {
		e.gone()
	} else {
		e.last, e.begin = m.Status.LastOperation, m.CreationTimestamp.Time
		e.reported, e.says = e.last.LastUpdateTime.Time, report.Description(e.last.Description, m.Name)
		if report.Leaves(m) {
			e.begin = m.DeletionTimestamp.Time
		}
		if note := e.noted(e.begin); note != nil {
			e.note = *note
		}
		if report.Leaves(m) {
			e.deleting()
		} else {
			e.living()
		}
	}
	e.owners()
	e.Report.Console = report.LastLines(e.Console)
	e.Show(e.Events, e.worthShowing)
	return e.Report
}

func identify(f MachineFacts) report.Identity {
	var id report.Identity
	if set := f.Set; set != nil {
		id.Set, id.SetReady = set.Name, fmt.Sprintf("%d of %d", set.Status.ReadyReplicas, set.Spec.Replicas)
	}
	if f.Deployment != nil {
		id.Deployment = f.Deployment.Name
	}
	if m := f.Machine; m != nil {
		id.Phase, id.ProviderID = string(m.Status.CurrentStatus.Phase), m.Spec.ProviderID
		id.Node, id.Class = m.Labels[v1alpha1.NodeLabelKey], m.Spec.Class.Name
		id.ClassReason = m.Annotations[v1alpha1.AnnotationKeyClassReason]
	}
	return id
}

// own reports whether an event is on the explained Machine.
func (e *explainer) own(event *corev1.Event) bool {
	var uid types.UID
	if e.Machine != nil {
		uid = e.Machine.UID
	}
	return report.On(event, e.Key.Name, uid)
}

// about reports whether an event of an owner names the Machine.
func (e *explainer) about(event *corev1.Event) bool { return report.Names(event, e.Key.Name) }

// noted returns the manager's newest event on the Machine since a time with one of the causes, or
// with any annotation; nil if there is none. Times of events are rounded.
func (e *explainer) noted(from time.Time, causes ...string) *corev1.Event {
	const slack = 2 * time.Second
	return e.Events.Newest(KindMachine, func(event *corev1.Event) bool {
		return e.own(event) && !report.Time(event).Before(from.Add(-slack)) &&
			(slices.Contains(causes, report.CauseOf(event)) || len(causes) == 0 && report.IsAnnotated(event) && !ofClasses(event))
	})
}

func (e *explainer) didFail() bool { return e.last.State == v1alpha1.MachineStateFailed }

// unhealthy reports whether a condition of the node makes the Machine unhealthy.
func (e *explainer) unhealthy(condition corev1.NodeCondition) bool {
	flag := e.Flags.NodeConditions
	if flag == nil {
		flag = noderef.DefaultBadConditions
	}
	return !noderef.Healthy([]corev1.NodeCondition{condition}, noderef.BadConditions(e.Machine, flag))
}

type failure struct {
	code   codes.Code
	method timeouts.Method
}

// failure returns the driver's error that the Machine waits for, if it does. Its code is in the last
// operation of a creation, and in the event of a deletion.
func (e *explainer) failure() (failure, bool) {
	if !e.didFail() {
		return failure{}, false
	}
	code, method := e.last.ErrorCode, timeouts.Create
	if e.last.Type == v1alpha1.MachineOperationDelete {
		method = timeouts.Delete
	}
	if e.elsewhere() || report.CauseOf(&e.note) == v1alpha1.CauseDriverFailed {
		method = timeouts.Method(e.note.Annotations[v1alpha1.EventAnnotationMethod])
		code = cmp.Or(code, e.note.Annotations[v1alpha1.EventAnnotationCode], codes.Unknown.String())
	}
	return failure{codes.StringToCode(code), method}, code != ""
}

func (e *explainer) driverFinding(f failure) report.Finding {
	why := say(v1alpha1.CauseDriverFailed, "{text}", AdviceFor(f.code, f.method == timeouts.Create))
	if e.elsewhere() {
		why = vmElsewhere
	}
	found := e.Finding(why, "", e.reported, "{text}", e.says, "{annotation}", driver.AnnotationLocation)
	found.Code = f.code.String()
	return found
}

// elsewhere reports whether the driver looked elsewhere than where the creation began.
func (e *explainer) elsewhere() bool {
	return report.CauseOf(&e.note) == v1alpha1.CauseInstanceElsewhere
}

// driverFailed says that the driver failed, and when it is asked again. The time is known after the
// first failure only: the manager does not record repetitions.
func (e *explainer) driverFailed(f failure) {
	e.Add(e.driverFinding(f))
	again := timeouts.Policy{ResourceExhausted: e.Flags.ResourceExhausted, CreationTimeout: e.Flags.Creation}.Backoff(f.method, f.code)
	due := timeouts.Timeout{Duration: again.Duration}.Deadline(e.reported, report.Led(e.Lease))
	if !due.After(e.now) {
		due = time.Time{}
	}
	often := fmt.Sprintf("after %s at first, then less and less often, at least every %s", messages.Duration(again.Duration), messages.Duration(again.Cap))
	if again.Duration == again.Cap {
		often = fmt.Sprintf("every %s (if the manager's --resource-exhausted-retry is that)", messages.Duration(again.Duration))
	}
	e.Earliest(due, askAgain, "{again}", often)
}

func describe(t timeouts.Timeout, name string) string {
	flag := map[string]string{"inPlaceUpdate": "inplace-update"}
	source := "if the manager's --machine-" + cmp.Or(flag[name], name) + "-timeout is that"
	switch t.Source {
	case timeouts.Spec:
		source = "spec." + name + "Timeout"
	case timeouts.Annotation:
		source = "by its annotation"
	}
	return fmt.Sprintf("%s (%s)", messages.Duration(t.Duration), source)
}

// owners adds what keeps a replacement from coming.
func (e *explainer) owners() {
	set := e.Set
	if set == nil || e.Verdict == report.Healthy || e.Verdict == report.NotFound {
		return
	}
	for _, condition := range set.Status.Conditions {
		cause := report.ReplicaFailure
		if condition.Type == v1alpha1.MachineSetFrozen {
			cause = report.Frozen
		}
		if condition.Status == v1alpha1.ConditionTrue {
			e.Say(cause, "MachineSet "+set.Name, condition.LastTransitionTime.Time, string(condition.Type)+": "+condition.Message)
		}
	}
}

// worthShowing reports whether an event is shown. Most of what sets and deployments do is about
// other Machines, or was before this one.
func (e *explainer) worthShowing(event *corev1.Event) bool {
	switch on := event.InvolvedObject; on.Kind {
	case KindMachine:
		return e.own(event)
	case KindSet:
		return e.about(event) || on.Name == e.Identity.Set && e.concerns(event)
	case KindDeployment:
		return e.about(event) || on.Name == e.Identity.Deployment && e.concerns(event)
	default:
		return true
	}
}

// concerns reports whether an event on an owner that does not name the Machine may be about it: a
// warning since it was made, or that a deployment scaled its set down before it was deleted.
func (e *explainer) concerns(event *corev1.Event) bool {
	m, at := e.Machine, report.Time(event)
	switch {
	case m != nil && at.Before(m.CreationTimestamp.Time):
		return false
	case event.Type == corev1.EventTypeWarning:
		return true
	case event.InvolvedObject.Kind != KindDeployment || !report.ScaledDown(event, e.Identity.Set):
		return false
	}
	return m == nil || report.Leaves(m) && !at.After(m.DeletionTimestamp.Time)
}

// SetCondition returns the condition of a set if it is True; nil otherwise.
func SetCondition(set *v1alpha1.MachineSet, of v1alpha1.MachineSetConditionType) *v1alpha1.MachineSetCondition {
	for i := range set.Status.Conditions {
		if is := &set.Status.Conditions[i]; is.Type == of && is.Status == v1alpha1.ConditionTrue {
			return is
		}
	}
	return nil
}
