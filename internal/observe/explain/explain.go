package explain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// The resources in commands for kubectl, by their full names: Cluster API has some of the same
// short ones.
const (
	machineResource    = "machines." + v1alpha1.GroupName
	setResource        = "machinesets." + v1alpha1.GroupName
	deploymentResource = "machinedeployments." + v1alpha1.GroupName
	vmResource         = "virtualmachines." + vmv1alpha1.GroupName
)

// mostEvents is how many events a report shows.
const mostEvents = 12

// Explain makes a report of what is known at a moment. It never fails: what is not known
// is said to be so.
func Explain(facts Facts, now time.Time) Report {
	e := &explainer{Facts: facts, writer: writer{now: now, subject: "Machine " + facts.Key.String()}}
	e.report = Report{Namespace: facts.Key.Namespace, Machine: facts.Key.Name, At: now, Unread: facts.Unread}
	e.identify()
	e.noManager(e.Lease, "machines")
	switch {
	case e.Machine == nil:
		e.gone()
	case !e.Machine.DeletionTimestamp.IsZero():
		e.deleting()
	default:
		e.living()
	}
	e.owners()
	e.recent()
	return e.report
}

// explainer fills the report about a Machine.
type explainer struct {
	Facts
	writer
}

// writer is what a report is filled with.
type writer struct {
	report Report
	now    time.Time
	// subject is what the report is about.
	subject string
}

func (e *writer) why(cause Cause, object string, since time.Time, format string, args ...any) {
	e.report.Why = append(e.report.Why, Finding{Cause: cause, Object: object, Since: since, Text: sentence(format, args...)})
}

func (e *writer) because(cause Cause, object string, since time.Time, format string, args ...any) {
	e.report.Replaced = append(e.report.Replaced, Finding{Cause: cause, Object: object, Since: since, Text: sentence(format, args...)})
}

func (e *writer) next(at time.Time, format string, args ...any) {
	e.report.Next = append(e.report.Next, Step{At: at, Text: sentence(format, args...)})
}

// advise says what helps, once: many pods may need the same.
func (e *writer) advise(format string, args ...any) {
	if text := sentence(format, args...); !slices.Contains(e.report.Advice, text) {
		e.report.Advice = append(e.report.Advice, text)
	}
}

// remedy is advice against what was found last.
func (e *writer) remedy(format string, args ...any) {
	e.advise(format, args...)
	e.report.Why[len(e.report.Why)-1].Remedy = sentence(format, args...)
}

// answer gives the verdict. The first finding says why.
func (e *writer) answer(verdict Verdict, what string, findings []Finding) {
	e.report.Verdict, e.report.Answer = verdict, e.subject+" "+what
	if len(findings) > 0 {
		e.report.Answer += ": " + inShort(findings[0].String())
	}
	e.report.Answer = strings.TrimSuffix(e.report.Answer, ".") + "."
}

// String is a finding in a clause that stands by itself.
func (f Finding) String() string {
	said := f.Text
	if f.Object != "" && !strings.Contains(said, f.Object) {
		said = f.Object + ": " + said
	}
	if f.Code != "" {
		said += " (" + f.Code + ")"
	}
	return said
}

// inShort keeps an answer to a line that can be read at a glance, with the end: there providers
// say what went wrong. The whole text is in the finding.
func inShort(text string) string {
	const most = 240
	return messages.Shorten(text, most)
}

// sentence is a text in one line without its full stop.
func sentence(format string, args ...any) string {
	text := format
	if len(args) > 0 {
		text = fmt.Sprintf(format, args...)
	}
	return strings.TrimSuffix(strings.Join(strings.Fields(text), " "), ".")
}

func (e *explainer) identify() {
	if set := e.Owners.Set; set != nil {
		e.report.Identity.Set = set.Name
		e.report.Identity.SetReady = fmt.Sprintf("%d of %d", set.Status.ReadyReplicas, set.Spec.Replicas)
	}
	if deployment := e.Owners.Deployment; deployment != nil {
		e.report.Identity.Deployment = deployment.Name
	}
	machine := e.Machine
	if machine == nil {
		return
	}
	status := machine.Status.CurrentStatus
	e.report.Identity.Phase = string(status.Phase)
	e.report.Identity.ProviderID = machine.Spec.ProviderID
	e.report.Identity.Node = machine.Labels[v1alpha1.NodeLabelKey]
	e.report.Identity.Class = machine.Spec.Class.Name
	e.report.Since = status.LastUpdateTime.Time
	if status.Phase == "" {
		e.report.Since = machine.CreationTimestamp.Time
	}
}

// noManager says so if nobody renews the lease of a manager.
func (e *writer) noManager(lease *coordinationv1.Lease, works string) {
	if lease == nil || lease.Spec.RenewTime == nil {
		return
	}
	const slack = 15 * time.Second // clocks differ, and API servers are slow at times
	held := time.Duration(deref(lease.Spec.LeaseDurationSeconds)) * time.Second
	if deref(lease.Spec.HolderIdentity) == "" || e.now.Sub(lease.Spec.RenewTime.Time) > held+slack {
		e.why(NoManager, "Lease "+lease.Namespace+"/"+lease.Name, lease.Spec.RenewTime.Time, "no manager works on the %s of this namespace: nobody renews Lease %s/%s", works, lease.Namespace, lease.Name)
		e.remedy("Start the manager, or read the log of the one that should run. Until then nothing of what follows happens")
	}
}

func deref[T any](pointer *T) (zero T) {
	if pointer == nil {
		return zero
	}
	return *pointer
}

// worked is since when the manager works, as far as its lease tells; zero if nothing does.
// Timeouts do not count from before.
func (e *explainer) worked() time.Time {
	if e.Lease == nil || e.Lease.Spec.AcquireTime == nil {
		return time.Time{}
	}
	return e.Lease.Spec.AcquireTime.Time
}

// owners says what keeps a replacement from coming.
func (e *explainer) owners() {
	set := e.Owners.Set
	if set == nil || e.report.Verdict == Healthy || e.report.Verdict == NotFound {
		return
	}
	object := "MachineSet " + set.Name
	for _, condition := range set.Status.Conditions {
		if condition.Status == v1alpha1.ConditionTrue {
			e.why(SetBlocked, object, condition.LastTransitionTime.Time, "%s: %s", condition.Type, condition.Message)
		}
	}
}

// recent takes over the newest events.
func (e *explainer) recent() {
	e.quote(e.Events, e.concerns)
}

// quote takes over the newest of the events that are worth showing.
func (e *writer) quote(events []corev1.Event, worth func(*corev1.Event) bool) {
	var shown []*corev1.Event
	for i := range events {
		if worth(&events[i]) {
			shown = append(shown, &events[i])
		}
	}
	for _, event := range shown[max(0, len(shown)-mostEvents):] {
		e.report.Events = append(e.report.Events, Said{
			At: timeOf(event), Type: event.Type, Object: event.InvolvedObject.Kind + " " + event.InvolvedObject.Name,
			Reason: event.Reason, Text: sentence("%s", event.Message), Count: countOf(event),
		})
	}
}

// concerns reports whether an event is worth showing. Most of what sets and deployments do
// is about other Machines, or was before there was this one.
func (e *explainer) concerns(event *corev1.Event) bool {
	warns := event.Type == corev1.EventTypeWarning && (e.Machine == nil || !timeOf(event).Before(e.Machine.CreationTimestamp.Time))
	switch event.InvolvedObject.Kind {
	case "Machine":
		return e.mine(event)
	case kindSet:
		return names(event.Message, e.Key.Name) || warns && event.InvolvedObject.Name == e.report.Identity.Set
	case kindDeployment:
		about := warns || e.shrinks(event)
		return names(event.Message, e.Key.Name) || about && event.InvolvedObject.Name == e.report.Identity.Deployment
	default:
		return true
	}
}

// shrinks reports whether with an event the Machine's set was scaled down, so that the Machine may
// have been deleted for that.
func (e *explainer) shrinks(event *corev1.Event) bool {
	stays := e.Machine != nil && e.Machine.DeletionTimestamp.IsZero()
	after := e.Machine != nil && !stays && timeOf(event).After(e.Machine.DeletionTimestamp.Time)
	before := e.Machine != nil && timeOf(event).Before(e.Machine.CreationTimestamp.Time)
	return !stays && !after && !before && e.report.Identity.Set != "" &&
		strings.Contains(event.Message, "Scaled down") && names(event.Message, e.report.Identity.Set)
}

func countOf(event *corev1.Event) int32 {
	if event.Series != nil {
		return max(event.Series.Count, 1)
	}
	return max(event.Count, 1)
}
