package report

import (
	"fmt"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// Statement maps a cause to a sentence and to advice against it. Texts hold placeholders as {node}.
type Statement struct {
	Cause  Cause
	Text   string
	Advice string
}

// NewStatement returns a Statement.
func NewStatement(cause Cause, text, advice string) Statement { return Statement{cause, text, advice} }

// Leaves reports whether an object is being deleted.
func Leaves(object metav1.Object) bool { return object.GetDeletionTimestamp() != nil }

// Builder fills a report.
type Builder struct {
	Report
	subject string
	values  []string
}

// New returns a Builder of a report about a subject. Values are placeholders, each with its text;
// they and those of the API groups' resources are replaced in all texts.
func New(of Report, subject string, values ...string) *Builder {
	values = append(values, "{namespace}", of.Namespace, "{virtualmachines}", "virtualmachines."+vmv1alpha1.GroupName)
	for _, resource := range []string{"machines", "machinesets", "machinedeployments"} {
		values = append(values, "{"+resource+"}", resource+"."+v1alpha1.GroupName)
	}
	return &Builder{Report: of, subject: subject, values: values}
}

// Text returns a template in one line with its values and without its full stop.
func (b *Builder) Text(template string, values ...string) string {
	if strings.Contains(template, "{") {
		template = strings.NewReplacer(slices.Concat(values, b.values)...).Replace(template)
	}
	return Clause(template)
}

// Clause returns a text in one line without its full stop.
func Clause(text string) string {
	return strings.TrimSuffix(strings.Join(strings.Fields(text), " "), ".")
}

// Finding returns the finding of a statement.
func (b *Builder) Finding(s Statement, object string, since time.Time, values ...string) Finding {
	return Finding{Statement: s, Cause: s.Cause, Object: object, Since: since, Text: b.Text(s.Text, values...), Remedy: b.Text(s.Advice, values...)}
}

// Why adds a reason for the answer.
func (b *Builder) Why(s Statement, object string, since time.Time, values ...string) {
	b.Add(b.Finding(s, object, since, values...))
}

// Say adds a reason for the answer in another's words.
func (b *Builder) Say(cause Cause, object string, since time.Time, text string) {
	b.Why(Statement{cause, "{text}", ""}, object, since, "{text}", text)
}

// Add adds a finding and its remedy.
func (b *Builder) Add(f Finding) {
	b.Report.Why = append(b.Report.Why, f)
	b.Advise(f.Remedy)
}

// Because adds a reason for the deletion of a Machine.
func (b *Builder) Because(s Statement, object string, since time.Time, values ...string) {
	b.Replaced = append(b.Replaced, b.Finding(s, object, since, values...))
}

// Next adds what happens at a time; zero if an event decides.
func (b *Builder) Next(at time.Time, text string, values ...string) {
	b.Report.Next = append(b.Report.Next, Step{At: at, Text: b.Text(text, values...)})
}

// Earliest adds what happens at a time or later; zero if that is unknown.
func (b *Builder) Earliest(at time.Time, text string, values ...string) {
	b.Next(at, text, values...)
	b.Report.Next[len(b.Report.Next)-1].Earliest = !at.IsZero()
}

// Advise adds advice, once.
func (b *Builder) Advise(text string, values ...string) {
	if text = b.Text(text, values...); text != "" && !slices.Contains(b.Advice, text) {
		b.Advice = append(b.Advice, text)
	}
}

// Conclude sets the answer. The first finding says why.
func (b *Builder) Conclude(verdict Verdict, what string, findings []Finding) {
	b.Verdict, b.Answer = verdict, b.subject+" "+what
	if len(findings) > 0 {
		b.Answer = strings.Replace(b.Answer+": "+short(findings[0]), "but: ", "but ", 1)
	}
	b.Answer = strings.TrimSuffix(b.Answer, ".") + "."
}

// WhyDeleted adds to the answer why the Machine was deleted.
func (b *Builder) WhyDeleted() {
	if first := b.Replaced[0]; first.Cause != Unexplained {
		b.Answer += " Why it was deleted: " + short(first) + "."
	}
}

// short cuts a finding in its middle: at the end providers say what went wrong.
func short(f Finding) string {
	const most = 240
	return messages.Shorten(f.String(), most)
}

// Manager adds a finding if no manager renews its lease.
func (b *Builder) Manager(lease *coordinationv1.Lease, works string) {
	if lease == nil || lease.Spec.RenewTime == nil {
		return
	}
	const slack = 15 * time.Second // clocks differ, and API servers are slow at times
	held := time.Duration(ptr.Deref(lease.Spec.LeaseDurationSeconds, 0)) * time.Second
	if ptr.Deref(lease.Spec.HolderIdentity, "") == "" || b.At.Sub(lease.Spec.RenewTime.Time) > held+slack {
		name := lease.Namespace + "/" + lease.Name
		b.Why(Statement{
			ManagerNotRunning, "no manager works on the {works} of this namespace: nobody renews Lease {lease}",
			"Start the manager, or read the log of the one that should run. Until then nothing of what follows happens",
		}, "Lease "+name, lease.Spec.RenewTime.Time, "{works}", works, "{lease}", name)
	}
}

// Led returns when a manager acquired a lease; zero if that is unknown. Timeouts begin then at the
// earliest.
func Led(lease *coordinationv1.Lease) time.Time {
	if lease == nil || lease.Spec.AcquireTime == nil {
		return time.Time{}
	}
	return lease.Spec.AcquireTime.Time
}

// holders are the owners of well-known finalizers, and what they wait for.
var holders = map[string]string{
	metav1.FinalizerDeleteDependents:          "Kubernetes' garbage collector, which waits for what the object owns",
	metav1.FinalizerOrphanDependents:          "Kubernetes' garbage collector",
	"machine.sapcloud.io/machine-controller":  "an old version of MCM",
	"vm.metropolis.monogon.dev/vm-controller": "the VM controller, which waits for the hypervisor to end",
	v1alpha1.FinalizerNode:                    "the manager, which waits for the VM to be gone",
	v1alpha1.FinalizerMCM:                     "the manager",
	"machine.cluster.x-k8s.io":                "Cluster API",
	"kubernetes.io/pv-protection":             "Kubernetes, which waits for the volume to be unused",
	"kubernetes.io/pvc-protection":            "Kubernetes, which waits for the claim to be unused",
	"batch.kubernetes.io/job-tracking":        "Kubernetes' job controller, which has to count the pod",
}

// Held adds a finding for each finalizer of an object that is being deleted. The object is empty if
// it is the explained one, and what names it in a sentence.
func (b *Builder) Held(finalizers []string, object, what string, by metav1.Object) {
	for _, finalizer := range finalizers {
		s := Statement{Finalizer, "finalizer {finalizer} holds {what}. It is that of {of}", ""}
		of, known := holders[finalizer]
		if !known {
			of = "nobody known here"
			s.Advice = "Ask whoever owns finalizer {finalizer}. Remove it by hand only if that program is gone for good"
		}
		for _, entry := range by.GetManagedFields() {
			if entry.Manager != "" && entry.FieldsV1 != nil && strings.Contains(string(entry.FieldsV1.GetRawBytes()), `"v:\"`+finalizer+`\""`) {
				of += "; it was set by " + entry.Manager
				break
			}
		}
		b.Why(s, object, by.GetDeletionTimestamp().Time, "{finalizer}", finalizer, "{what}", what, "{of}", of)
	}
}

// Similar advises names that may have been meant: those that contain the name or begin as it does.
func (b *Builder) Similar(names []string, name, kind string) {
	const most = 5
	prefix := name
	if at := strings.LastIndexByte(name, '-'); at > 0 {
		prefix = name[:at+1]
	}
	var near []string
	for _, other := range names {
		if strings.Contains(other, name) || strings.HasPrefix(other, prefix) {
			near = append(near, other)
		}
	}
	slices.Sort(near)
	if len(near) > 0 {
		b.Advise("Did you mean {near}?", "{near}", strings.Join(near[:min(most, len(near))], ", "))
	}
	if len(names) == 0 {
		b.Advise(fmt.Sprintf("There are no %s in namespace {namespace} at all: is it the right one (--namespace)?", kind))
	}
}

// Show takes over the newest of the events that are worth it.
func (b *Builder) Show(events Events, worth func(*corev1.Event) bool) {
	const most = 12
	for i := range events {
		event := &events[i]
		if !worth(event) {
			continue
		}
		count := event.Count
		if event.Series != nil {
			count = event.Series.Count
		}
		b.Events = append(b.Events, Event{
			At: Time(event), Type: event.Type, Object: event.InvolvedObject.Kind + " " + event.InvolvedObject.Name,
			Reason: event.Reason, Text: Clause(event.Message), Count: max(count, 1),
		})
	}
	b.Events = b.Events[max(0, len(b.Events)-most):]
}
