// Package explain explains the state of Machines: why one is not Running, why it was replaced, and
// what its deletion waits for. Package pool explains why MachineSets and MachineDeployments do not have the desired
// Machines.
//
// Both are pure: gather reads the facts, these packages derive findings from them with the texts in words.go, and report
// prints the findings. They use only objects and events, not the memory of a running manager;
// docs/design/0010-explain.md lists the resulting limits.
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
	// last is the last operation, reported is the time when the manager reported it, and message is its
	// description for users.
	last     v1alpha1.LastOperation
	reported time.Time
	message  string
	// begin is the time when the creation or deletion started.
	begin time.Time
	// note is the manager's latest annotated event on the Machine since then. It is empty if there is
	// none.
	note corev1.Event
}

// Machine explains a Machine: why it is not Running, why it was deleted, and what its deletion waits for.
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
		e.reported, e.message = e.last.LastUpdateTime.Time, report.Description(e.last.Description, m.Name)
		if report.IsDeleting(m) {
			e.begin = m.DeletionTimestamp.Time
		}
		if note := e.noted(e.begin); note != nil {
			e.note = *note
		}
		if report.IsDeleting(m) {
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
		id.Node, id.Class = m.NodeName(), m.Spec.Class.Name
		id.ClassReason = m.Annotations[v1alpha1.AnnotationKeyClassReason]
	}
	return id
}

// own reports whether an event is about the explained Machine itself.
func (e *explainer) own(event *corev1.Event) bool {
	var uid types.UID
	if e.Machine != nil {
		uid = e.Machine.UID
	}
	return report.On(event, e.Key.Name, uid)
}

// about reports whether an event of an owner names the Machine.
func (e *explainer) about(event *corev1.Event) bool { return report.Names(event, e.Key.Name) }

// noted returns the manager's latest event on the Machine since from with one of the causes, or, without causes, with
// any annotation. It returns nil if there is none. Times of events are rounded.
func (e *explainer) noted(from time.Time, causes ...string) *corev1.Event {
	const slack = 2 * time.Second
	return e.Events.Newest(KindMachine, func(event *corev1.Event) bool {
		return e.own(event) && !report.Time(event).Before(from.Add(-slack)) &&
			(slices.Contains(causes, report.CauseOf(event)) || len(causes) == 0 && report.IsAnnotated(event) && !ofClasses(event))
	})
}

func (e *explainer) lastFailed() bool { return e.last.State == v1alpha1.MachineStateFailed }

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

// failure returns the driver's error because of which the Machine waits, if there is one. The code is in the last
// operation of a creation, and in the event of a deletion.
func (e *explainer) failure() (failure, bool) {
	if !e.lastFailed() || e.last.ErrorCode == v1alpha1.FailedJoin {
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
	why := newStatement(v1alpha1.CauseDriverFailed, "{text}", AdviceFor(f.code, e.message, f.method == timeouts.Create))
	if e.elsewhere() {
		why = vmElsewhere
	}
	found := e.Finding(why, "", e.reported, "{text}", e.message, "{annotation}", driver.AnnotationLocation)
	found.Code = f.code.String()
	return found
}

// elsewhere reports whether the driver looked in another location than the one where the creation started.
func (e *explainer) elsewhere() bool {
	return report.CauseOf(&e.note) == v1alpha1.CauseInstanceElsewhere
}

// driverFailed adds that the driver failed, and when the manager retries. The time is known only after the first
// failure, because the manager does not record later ones.
func (e *explainer) driverFailed(f failure) {
	e.Add(e.driverFinding(f))
	again := timeouts.Policy{ResourceExhausted: e.Flags.ResourceExhausted, CreationTimeout: e.Flags.Creation}.Backoff(f.method, f.code)
	due := timeouts.Timeout{Duration: again.Duration}.Deadline(e.reported, report.LeaderSince(e.Lease))
	if !due.After(e.now) {
		due = time.Time{}
	}
	often := fmt.Sprintf("after %s, then at increasing intervals of at most %s", messages.Duration(again.Duration), messages.Duration(again.Cap))
	if again.Duration == again.Cap {
		often = fmt.Sprintf("every %s (assuming the manager's --resource-exhausted-retry has this value)", messages.Duration(again.Duration))
	}
	e.Earliest(due, askAgain, "{again}", often)
}

func describe(t timeouts.Timeout, name string) string {
	flag := map[string]string{"inPlaceUpdate": "inplace-update"}
	source := "assuming the manager's --machine-" + cmp.Or(flag[name], name) + "-timeout has this value"
	switch t.Source {
	case timeouts.Spec:
		source = "spec." + name + "Timeout"
	case timeouts.Annotation:
		source = "set by its annotation"
	}
	return fmt.Sprintf("%s (%s)", messages.Duration(t.Duration), source)
}

// owners adds what prevents a replacement.
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
			e.Quote(cause, "MachineSet "+set.Name, condition.LastTransitionTime.Time, string(condition.Type)+": "+condition.Message)
		}
	}
}

// worthShowing reports whether an event is shown. Most events of sets and deployments concern other Machines, or are
// older than this one.
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

// concerns reports whether an event on an owner that does not name the Machine may concern it: a warning since its
// creation, or a scale-down of its set by a deployment before its deletion.
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
	return m == nil || report.IsDeleting(m) && !at.After(m.DeletionTimestamp.Time)
}

// SetCondition returns the condition of a set if it is True, and nil otherwise.
func SetCondition(set *v1alpha1.MachineSet, of v1alpha1.MachineSetConditionType) *v1alpha1.MachineSetCondition {
	for i := range set.Status.Conditions {
		if is := &set.Status.Conditions[i]; is.Type == of && is.Status == v1alpha1.ConditionTrue {
			return is
		}
	}
	return nil
}
