package machine

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
)

// Explain makes a report of what is known at a moment. It never fails: what is not known
// is said to be so.
func Explain(facts Facts, now time.Time) report.Report {
	e := &explainer{Facts: facts, now: now}
	e.Builder = report.New(report.Report{
		Namespace: facts.Key.Namespace, Machine: facts.Key.Name, At: now, Unread: facts.Unread, Identity: e.identity(),
	}, "Machine "+facts.Key.String(), "{name}", facts.Key.Name, "{class}", e.class(), "{node}", e.nodeName(),
		"{console}", e.console(), "{provider ID}", e.providerID())
	e.Manager(e.Lease, "machines")
	switch {
	case e.Machine == nil:
		e.gone()
	case !e.Machine.DeletionTimestamp.IsZero():
		e.deleting()
	default:
		e.living()
	}
	e.owners()
	e.Quote(e.Facts.Events, e.worthShowing)
	return e.Report
}

// explainer fills the report about a Machine.
type explainer struct {
	Facts
	*report.Builder
	now time.Time
}

func (e *explainer) identity() report.Identity {
	var id report.Identity
	if set := e.Owners.Set; set != nil {
		id.Set, id.SetReady = set.Name, fmt.Sprintf("%d of %d", set.Status.ReadyReplicas, set.Spec.Replicas)
	}
	if deployment := e.Owners.Deployment; deployment != nil {
		id.Deployment = deployment.Name
	}
	if machine := e.Machine; machine != nil {
		id.Phase, id.ProviderID = string(machine.Status.CurrentStatus.Phase), machine.Spec.ProviderID
		id.Node, id.Class = machine.Labels[v1alpha1.NodeLabelKey], machine.Spec.Class.Name
	}
	return id
}

func (e *explainer) class() string {
	if e.Machine == nil {
		return ""
	}
	return e.Machine.Spec.Class.Name
}

func (e *explainer) providerID() string {
	if e.Machine == nil {
		return ""
	}
	return e.Machine.Spec.ProviderID
}

// nodeName is that of the Machine's node, or a guess.
func (e *explainer) nodeName() string {
	if e.Machine == nil {
		return ""
	}
	return cmp.Or(e.Machine.Labels[v1alpha1.NodeLabelKey], e.Machine.Name)
}

// last is the Machine's last operation.
func (e *explainer) last() v1alpha1.LastOperation { return e.Machine.Status.LastOperation }

// reported is when the manager reported last, and says is what.
func (e *explainer) reported() time.Time { return e.last().LastUpdateTime.Time }

func (e *explainer) says() string { return report.Reported(e.last().Description, e.Key.Name) }

// since is when the Machine came into its phase.
func (e *explainer) since() time.Time { return e.Machine.Status.CurrentStatus.LastUpdateTime.Time }

// noted returns the newest event on the Machine with one of the causes, or of any cause, that was
// written at a time or later; nil if there is none. Times of events are rounded.
func (e *explainer) noted(from time.Time, causes ...string) *corev1.Event {
	const slack = 2 * time.Second
	return e.Facts.Events.Newest("Machine", func(event *corev1.Event) bool {
		cause := report.CauseOf(event)
		return e.own(event) && !report.Time(event).Before(from.Add(-slack)) && (slices.Contains(causes, cause) || len(causes) == 0 && cause != "")
	})
}

func (e *explainer) badConditions() []string {
	flag := e.Flags.NodeConditions
	if flag == nil {
		flag = noderef.DefaultBadConditions
	}
	return noderef.BadConditions(e.Machine, flag)
}

// owners says what keeps a replacement from coming.
func (e *explainer) owners() {
	set := e.Owners.Set
	if set == nil || e.Verdict == report.Healthy || e.Verdict == report.NotFound {
		return
	}
	for _, condition := range set.Status.Conditions {
		if condition.Status != v1alpha1.ConditionTrue {
			continue
		}
		cause := report.ReplicaFailure
		if condition.Type == v1alpha1.MachineSetFrozen {
			cause = report.Frozen
		}
		e.Why(statement{Cause: cause, Text: "{type}: {text}"}, "MachineSet "+set.Name, condition.LastTransitionTime.Time,
			"{type}", string(condition.Type), "{text}", condition.Message)
	}
}

// worthShowing reports whether an event is worth showing. Most of what sets and deployments do
// is about other Machines, or was before there was this one.
func (e *explainer) worthShowing(event *corev1.Event) bool {
	id, on := e.Identity, event.InvolvedObject
	warns := event.Type == corev1.EventTypeWarning && (e.Machine == nil || !report.Time(event).Before(e.Machine.CreationTimestamp.Time))
	switch on.Kind {
	case "Machine":
		return e.own(event)
	case "MachineSet":
		return e.about(event) || warns && on.Name == id.Set
	case "MachineDeployment":
		return e.about(event) || (warns || e.shrank(event)) && on.Name == id.Deployment
	default:
		return true
	}
}

// shrank reports whether with an event the Machine's set was scaled down, so that the Machine may
// have been deleted for that.
func (e *explainer) shrank(event *corev1.Event) bool {
	set, at := e.Identity.Set, report.Time(event)
	if set == "" || report.CauseOf(event) != v1alpha1.CauseScaledDown || !report.Names(event, set) {
		return false
	}
	deleted := e.Machine == nil || !e.Machine.DeletionTimestamp.IsZero() && !at.After(e.Machine.DeletionTimestamp.Time)
	return deleted && (e.Machine == nil || !at.Before(e.Machine.CreationTimestamp.Time))
}
