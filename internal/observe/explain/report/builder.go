package report

import (
	"fmt"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// Statement is a row of the tables that map causes to words: what is said of a cause, and what
// helps against it. Texts may hold placeholders as {node}.
type Statement struct {
	Cause  Cause
	Text   string
	Advice string
}

// Builder fills a report.
type Builder struct {
	Report
	now     time.Time
	subject string
	values  []string
}

// New returns a Builder of a report about a subject. The values replace placeholders in all of
// its texts: "{name}", its value, and so on.
func New(of Report, subject string, values ...string) *Builder {
	values = append(values, "{namespace}", of.Namespace, "{machines}", "machines."+v1alpha1.GroupName,
		"{machinesets}", "machinesets."+v1alpha1.GroupName, "{machinedeployments}", "machinedeployments."+v1alpha1.GroupName,
		"{virtualmachines}", "virtualmachines."+vmv1alpha1.GroupName)
	return &Builder{Report: of, now: of.At, subject: subject, values: values}
}

// Text is a template in one line with its values, without its full stop.
func (b *Builder) Text(template string, values ...string) string {
	text := strings.NewReplacer(slices.Concat(values, b.values)...).Replace(template)
	return strings.TrimSuffix(strings.Join(strings.Fields(text), " "), ".")
}

func (b *Builder) finding(s Statement, object string, since time.Time, values []string) Finding {
	return Finding{Cause: s.Cause, Object: object, Since: since, Text: b.Text(s.Text, values...), Remedy: b.Text(s.Advice, values...)}
}

// Why adds a reason for the answer.
func (b *Builder) Why(s Statement, object string, since time.Time, values ...string) {
	b.Add(b.finding(s, object, since, values))
}

// Add adds a finding and its remedy.
func (b *Builder) Add(f Finding) {
	b.Report.Why = append(b.Report.Why, f)
	b.advise(f.Remedy)
}

// Because adds a reason for the deletion of a Machine.
func (b *Builder) Because(s Statement, object string, since time.Time, values ...string) {
	b.Replaced = append(b.Replaced, b.finding(s, object, since, values))
}

// Next adds what happens at a time; zero if it is not known when.
func (b *Builder) Next(at time.Time, text string, values ...string) {
	b.Report.Next = append(b.Report.Next, Step{At: at, Text: b.Text(text, values...)})
}

// Earliest adds what happens at a time or later; zero if it is not known when.
func (b *Builder) Earliest(at time.Time, text string, values ...string) {
	b.Report.Next = append(b.Report.Next, Step{At: at, Earliest: !at.IsZero(), Text: b.Text(text, values...)})
}

// Advise adds what helps, once: many findings may need the same.
func (b *Builder) Advise(text string, values ...string) {
	b.advise(b.Text(text, values...))
}

func (b *Builder) advise(text string) {
	if text != "" && !slices.Contains(b.Advice, text) {
		b.Advice = append(b.Advice, text)
	}
}

// Conclude gives the answer. The first finding says why.
func (b *Builder) Conclude(verdict Verdict, what string, findings []Finding) {
	b.Verdict, b.Answer = verdict, b.subject+" "+what
	if len(findings) > 0 {
		b.Answer += ": " + short(findings[0])
		b.Answer = strings.Replace(b.Answer, "but: ", "but ", 1)
	}
	b.Answer = strings.TrimSuffix(b.Answer, ".") + "."
}

// WhyDeleted adds to the answer why the Machine was deleted.
func (b *Builder) WhyDeleted() {
	if first := b.Replaced[0]; first.Cause != Unexplained {
		b.Answer += " Why it was deleted: " + short(first) + "."
	}
}

// short keeps an answer to a line that can be read at a glance, with the end: there providers
// say what went wrong. The whole text is in the finding.
func short(f Finding) string {
	const most = 240
	return messages.Shorten(f.String(), most)
}

var managerNotRunning = Statement{ManagerNotRunning,
	"no manager works on the {works} of this namespace: nobody renews Lease {lease}",
	"Start the manager, or read the log of the one that should run. Until then nothing of what follows happens"}

// Manager says so if nobody renews the lease of a manager.
func (b *Builder) Manager(lease *coordinationv1.Lease, works string) {
	if lease == nil || lease.Spec.RenewTime == nil {
		return
	}
	const slack = 15 * time.Second // clocks differ, and API servers are slow at times
	held := time.Duration(deref(lease.Spec.LeaseDurationSeconds)) * time.Second
	if deref(lease.Spec.HolderIdentity) == "" || b.now.Sub(lease.Spec.RenewTime.Time) > held+slack {
		name := lease.Namespace + "/" + lease.Name
		b.Why(managerNotRunning, "Lease "+name, lease.Spec.RenewTime.Time, "{works}", works, "{lease}", name)
	}
}

// Led returns since when a manager holds a lease; zero if nothing tells. Timeouts do not count
// from before.
func Led(lease *coordinationv1.Lease) time.Time {
	if lease == nil || lease.Spec.AcquireTime == nil {
		return time.Time{}
	}
	return lease.Spec.AcquireTime.Time
}

// knownHolders says whose well-known finalizers are, and what they wait for.
var knownHolders = map[string]string{
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

const heldText = "finalizer {finalizer} holds {what}. It is that of {of}"

var (
	held          = Statement{Finalizer, heldText, ""}
	heldByUnknown = Statement{Finalizer, heldText, "Ask whoever owns finalizer {finalizer}. Remove it by hand only if that program is gone for good"}
)

// Held says whose some finalizers of an object are. The object has no name if it is the one
// that is asked about, and what says what it is.
func (b *Builder) Held(finalizers []string, object, what string, by metav1.Object) {
	for _, finalizer := range finalizers {
		of, known := knownHolders[finalizer]
		statement := held
		if !known {
			of, statement = "nobody known here", heldByUnknown
		}
		if who := setBy(by, finalizer); who != "" {
			of += "; it was set by " + who
		}
		b.Why(statement, object, by.GetDeletionTimestamp().Time, "{finalizer}", finalizer, "{what}", what, "{of}", of)
	}
}

// setBy names the program that set a finalizer, as the API server recorded it; empty if it
// did not.
func setBy(object metav1.Object, finalizer string) string {
	for _, entry := range object.GetManagedFields() {
		if entry.FieldsV1 != nil && strings.Contains(string(entry.FieldsV1.GetRawBytes()), `"v:\"`+finalizer+`\""`) {
			return entry.Manager
		}
	}
	return ""
}

// Similar names objects that may have been meant: of a name that begins with a prefix.
func (b *Builder) Similar(names []string, name, prefix, kind string) {
	const most = 5
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

func deref[T any](pointer *T) (zero T) {
	if pointer == nil {
		return zero
	}
	return *pointer
}
