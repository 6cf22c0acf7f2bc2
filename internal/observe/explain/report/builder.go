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

// Statement is a sentence about a cause, and advice on what to do about it. Texts can contain placefinalizerOwners such as
// {node}.
type Statement struct {
	Cause  Cause
	Text   string
	Advice string
}

// NewStatement returns a Statement.
func NewStatement(cause Cause, text, advice string) Statement { return Statement{cause, text, advice} }

// IsDeleting reports whether an object is being deleted.
func IsDeleting(object metav1.Object) bool { return object.GetDeletionTimestamp() != nil }

// Builder builds a report.
type Builder struct {
	Report
	subject string
	values  []string
}

// New returns a Builder of a report about a subject. Values are pairs of a placeholder and its replacement. They
// are replaced in all texts, in addition to the resources of the API groups.
func New(of Report, subject string, values ...string) *Builder {
	values = append(values, "{namespace}", of.Namespace, "{virtualmachines}", "virtualmachines."+vmv1alpha1.GroupName)
	for _, resource := range []string{"machines", "machinesets", "machinedeployments"} {
		values = append(values, "{"+resource+"}", resource+"."+v1alpha1.GroupName)
	}
	return &Builder{Report: of, subject: subject, values: values}
}

// Text replaces the placefinalizerOwners in a template, and returns it in one line without trailing period.
func (b *Builder) Text(template string, values ...string) string {
	if strings.Contains(template, "{") {
		template = strings.NewReplacer(slices.Concat(values, b.values)...).Replace(template)
	}
	return Clause(template)
}

// Clause returns a text in one line without trailing period.
func Clause(text string) string {
	return strings.TrimSuffix(strings.Join(strings.Fields(text), " "), ".")
}

// Finding returns the finding of a statement.
func (b *Builder) Finding(s Statement, object string, since time.Time, values ...string) Finding {
	return Finding{Statement: s, Cause: s.Cause, Object: object, Since: since, Text: b.Text(s.Text, values...), Remedy: b.Text(s.Advice, values...)}
}

// Why adds a reason for the verdict.
func (b *Builder) Why(s Statement, object string, since time.Time, values ...string) {
	b.Add(b.Finding(s, object, since, values...))
}

// Quote adds a text of another component as a reason for the verdict.
func (b *Builder) Quote(cause Cause, object string, since time.Time, text string) {
	if Clause(text) == "" {
		text = "no message was recorded"
	}
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

// Next adds what happens at a time. The time is zero if it depends on an event.
func (b *Builder) Next(at time.Time, text string, values ...string) {
	b.Report.Next = append(b.Report.Next, Step{At: at, Text: b.Text(text, values...)})
}

// Earliest adds what happens at a time or later. The time is zero if it is unknown.
func (b *Builder) Earliest(at time.Time, text string, values ...string) {
	b.Next(at, text, values...)
	b.Report.Next[len(b.Report.Next)-1].Earliest = !at.IsZero()
}

// Advise adds advice unless the report already contains it.
func (b *Builder) Advise(text string, values ...string) {
	if text = b.Text(text, values...); text != "" && !slices.Contains(b.Advice, text) {
		b.Advice = append(b.Advice, text)
	}
}

// Conclude sets the verdict and its sentence, which quotes the first finding.
func (b *Builder) Conclude(verdict Verdict, what string, findings []Finding) {
	b.Verdict, b.Summary = verdict, b.subject+" "+what
	if len(findings) > 0 {
		b.Summary = strings.Replace(b.Summary+": "+short(findings[0]), "but: ", "but ", 1)
	}
	b.Summary = strings.TrimSuffix(b.Summary, ".") + "."
}

// WhyDeleted adds to the first sentence why the Machine was deleted.
func (b *Builder) WhyDeleted() {
	if first := b.Replaced[0]; first.Cause != Unexplained {
		b.Summary += " Why it was deleted: " + short(first) + "."
	}
}

// short shortens a finding in the middle, because providers describe errors at the end of a message.
func short(f Finding) string {
	const most = 240
	return messages.Shorten(f.String(), most)
}

// Manager adds a finding if no manager renews its lease.
func (b *Builder) Manager(lease *coordinationv1.Lease, works string) {
	if lease == nil || lease.Spec.RenewTime == nil {
		return
	}
	const slack = 15 * time.Second // for clock skew and slow API servers
	held := time.Duration(ptr.Deref(lease.Spec.LeaseDurationSeconds, 0)) * time.Second
	if ptr.Deref(lease.Spec.HolderIdentity, "") == "" || b.At.Sub(lease.Spec.RenewTime.Time) > held+slack {
		name := lease.Namespace + "/" + lease.Name
		b.Why(Statement{
			ManagerNotRunning, "no manager handles the {works} of this namespace: Lease {lease} is not being renewed",
			"Start the manager, or check the log of the one that should be running. Until then, none of the following happens",
		}, "Lease "+name, lease.Spec.RenewTime.Time, "{works}", works, "{lease}", name)
	}
}

// LeaderSince returns when the current manager acquired the lease, or zero if that is unknown. Timeouts do not
// start earlier.
func LeaderSince(lease *coordinationv1.Lease) time.Time {
	if lease == nil || lease.Spec.AcquireTime == nil {
		return time.Time{}
	}
	return lease.Spec.AcquireTime.Time
}

// finalizerOwners describes the owners of well-known finalizers, and what they wait for.
var finalizerOwners = map[string]string{
	metav1.FinalizerDeleteDependents:          "it belongs to the Kubernetes garbage collector, which waits for dependent objects",
	metav1.FinalizerOrphanDependents:          "it belongs to the Kubernetes garbage collector",
	"machine.sapcloud.io/machine-controller":  "it belongs to an old version of MCM",
	"vm.metropolis.monogon.dev/vm-controller": "it belongs to the VM controller, which waits for the hypervisor to exit",
	v1alpha1.FinalizerNode:                    "it belongs to the manager, which waits until the VM no longer exists",
	v1alpha1.FinalizerMCM:                     "it belongs to the manager",
	"machine.cluster.x-k8s.io":                "it belongs to Cluster API",
	"kubernetes.io/pv-protection":             "it belongs to Kubernetes, which waits until the volume is unused",
	"kubernetes.io/pvc-protection":            "it belongs to Kubernetes, which waits until the claim is unused",
	"batch.kubernetes.io/job-tracking":        "it belongs to the Kubernetes job controller, which must count the pod",
}

// Held adds a finding for each finalizer of an object that is being deleted. The object is empty if it is the
// explained object. what is its name in a sentence.
func (b *Builder) Held(finalizers []string, object, what string, by metav1.Object) {
	for _, finalizer := range finalizers {
		s := Statement{Finalizer, "finalizer {finalizer} delays the deletion of {what}; {owner}", ""}
		owner, known := finalizerOwners[finalizer]
		if !known {
			owner = "its owner is unknown"
			s.Advice = "Contact the owner of finalizer {finalizer}. Remove it manually only if that program no longer exists"
		}
		for _, entry := range by.GetManagedFields() {
			if entry.Manager != "" && entry.FieldsV1 != nil && strings.Contains(string(entry.FieldsV1.GetRawBytes()), `"v:\"`+finalizer+`\""`) {
				owner += "; it was set by " + entry.Manager
				break
			}
		}
		b.Why(s, object, by.GetDeletionTimestamp().Time, "{finalizer}", finalizer, "{what}", what, "{owner}", owner)
	}
}

// Similar advises similar names: those that contain the name or have the same prefix.
func (b *Builder) Similar(names []string, name, kind string) {
	const most = 5
	prefix := name
	if at := strings.LastIndexByte(name, '-'); at > 0 {
		prefix = name[:at+1]
	}
	var similar []string
	for _, other := range names {
		if strings.Contains(other, name) || strings.HasPrefix(other, prefix) {
			similar = append(similar, other)
		}
	}
	slices.Sort(similar)
	if len(similar) > 0 {
		b.Advise("Did you mean {names}?", "{names}", strings.Join(similar[:min(most, len(similar))], ", "))
	}
	if len(names) == 0 {
		b.Advise(fmt.Sprintf("Namespace {namespace} has no %s; check --namespace", kind))
	}
}

// Show adds the latest of the events for which worth returns true.
func (b *Builder) Show(events Events, worth func(*corev1.Event) bool) {
	const most = 12
	for i := range events {
		event := &events[i]
		if !worth(event) {
			continue
		}
		b.Events = append(b.Events, EventOf(event))
	}
	b.Events = b.Events[max(0, len(b.Events)-most):]
}
