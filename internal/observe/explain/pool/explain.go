package pool

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/observe/explain/machine"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// Explain makes a report of what is known of a set or deployment at a moment. It never fails:
// what is not known is said to be so.
func Explain(facts Facts, now time.Time) report.Report {
	e := &explainer{Facts: facts, now: now}
	empty := report.Report{Namespace: facts.Key.Namespace, At: now, Unread: facts.Unread}
	if facts.Kind == Deployment {
		empty.MachineDeployment = facts.Key.Name
	} else {
		empty.MachineSet = facts.Key.Name
	}
	e.Builder = report.New(empty, facts.Kind+" "+facts.Key.String(), "{name}", facts.Key.Name)
	if facts.Exists() {
		e.living()
	} else {
		e.gone()
	}
	// What went wrong, and what was decided; that something follows, like annotations of sets
	// those of their deployment, is neither.
	e.Quote(e.Facts.Events, func(event *corev1.Event) bool {
		return event.Type == corev1.EventTypeWarning || event.InvolvedObject.Kind == e.Kind && event.Reason != "RefreshedMachineSet"
	})
	return e.Report
}

// explainer fills the report about a set or deployment.
type explainer struct {
	Facts
	*report.Builder
	now time.Time
	// newest is the part of the Machines that are of the newest template.
	newest report.Part
}

// object is what is asked about.
func (e *explainer) object() metav1.Object {
	if e.Kind == Deployment {
		return e.Deployment
	}
	return &e.Sets[0]
}

// gone says what there is to say of an object that does not exist.
func (e *explainer) gone() {
	if events := e.Facts.Events; len(events) > 0 {
		e.Since = report.Time(&events[len(events)-1])
		e.Conclude(report.Gone, "is gone; its last event is from "+report.Clock(e.Since, e.now), nil)
		return
	}
	e.Conclude(report.NotFound, "does not exist, and nothing tells that it ever did", nil)
	e.Similar(e.Names, e.Key.Name, machine.PoolName(e.Key.Name), strings.ToLower(e.Kind)+"s")
}

// living explains a set or deployment that exists.
func (e *explainer) living() {
	e.identify()
	e.Manager(e.Lease, "sets and deployments")
	e.Manager(e.MachineLease, "machines")
	if e.object().GetDeletionTimestamp() != nil {
		e.deleting()
		return
	}
	if e.Kind == Deployment {
		e.deployment()
	} else {
		e.set(&e.Sets[0])
	}
	e.troubled(e.Machines)
	if e.Kind == Deployment {
		e.late()
		e.rollout()
	}
	e.remarks()
	what, complete := e.has(), e.complete()
	switch unlisted := e.unlisted(); {
	case unlisted != "":
		e.Conclude(report.Unknown, what+" by its status. It cannot be told whether that is so, and why: "+unlisted+" cannot be read", nil)
	case complete && len(e.Report.Why) > 0:
		e.Conclude(report.Healthy, what+", but", e.Report.Why)
	case complete:
		e.Conclude(report.Healthy, what, nil)
	default:
		e.count()
		e.Conclude(report.Incomplete, what, e.Report.Why)
	}
}

// complete reports whether all Machines are there, can be used, and are of the newest template.
func (e *explainer) complete() bool {
	p := e.Pool
	return min(p.Available, e.newest.Available) >= p.Wanted && p.Exist-p.Preserved == p.Wanted && p.Updated-e.newest.Preserved == p.Wanted
}

// unlisted is what could not be listed of that which is the object's; empty if all was.
func (e *explainer) unlisted() string {
	switch {
	case e.SetsUnread:
		return "its machine sets"
	case e.MachinesUnread:
		return "its machines"
	}
	return ""
}

// has says how many Machines there are.
func (e *explainer) has() string {
	pool, complete := e.Pool, e.complete()
	switch {
	case pool.Wanted == 0 && pool.Exist == 0:
		return "wants no machines, and has none"
	case complete && pool.Wanted == 1:
		return "has the machine that it wants"
	case complete:
		return fmt.Sprintf("has all %s that it wants", messages.Machines(pool.Wanted))
	}
	what := fmt.Sprintf("has %d of %s available", pool.Available, messages.Machines(pool.Wanted))
	if pool.Available > pool.Wanted {
		what = fmt.Sprintf("wants %s and has %d available", messages.Machines(pool.Wanted), pool.Available)
	}
	if e.Kind == Deployment && pool.Updated < pool.Exist {
		what += fmt.Sprintf(" (%d of %d %s of its newest template)", pool.Updated, pool.Exist, messages.Are(pool.Updated))
	}
	return what
}

// identify counts. A deployment's Machines are counted by its sets' status, a set's by
// itself: what is being deleted does not count.
func (e *explainer) identify() {
	pool := &report.Pool{}
	e.Pool = pool
	e.Since = e.object().GetCreationTimestamp().Time
	for i := range e.Sets {
		set := &e.Sets[i]
		own := e.part(set)
		pool.Exist += own.Exist
		pool.Available += own.Available
		pool.Preserved += own.Preserved
		if e.current() == set {
			pool.Updated, e.newest = own.Exist, own
		}
		if e.Kind == Deployment && (own.Wanted > 0 || own.Exist > 0) {
			pool.Sets = append(pool.Sets, own)
		}
	}
	if e.SetsUnread {
		status := e.Deployment.Status
		pool.Exist, pool.Updated, pool.Ready, pool.Available = status.Replicas, status.UpdatedReplicas, status.ReadyReplicas, status.AvailableReplicas
		e.newest.Available = min(status.AvailableReplicas, status.UpdatedReplicas)
	}
	if e.Kind == Deployment {
		pool.Wanted, e.Identity.Class = e.Deployment.Spec.Replicas, e.Deployment.Spec.Template.Spec.Class.Name
		return
	}
	pool.Wanted, e.Identity.Class = e.Sets[0].Spec.Replicas, e.Sets[0].Spec.Template.Spec.Class.Name
	if e.Deployment != nil {
		e.Identity.Deployment = e.Deployment.Name
	}
}

// part counts the Machines of a set. Its status knows which are available, and may be older
// than the list.
func (e *explainer) part(set *v1alpha1.MachineSet) report.Part {
	own := report.Part{Name: set.Name, Revision: set.Annotations[v1alpha1.AnnotationKeyRevision], Wanted: set.Spec.Replicas}
	if e.MachinesUnread {
		own.Exist, own.Available = set.Status.Replicas, set.Status.AvailableReplicas
		e.Pool.Ready += set.Status.ReadyReplicas
		return own
	}
	able, machines := int32(0), e.of(set)
	for _, machine := range machines {
		if leaving(machine) {
			e.Pool.Leaving++
			continue
		}
		own.Exist++
		if machine.Status.CurrentStatus.Phase == v1alpha1.MachineRunning {
			e.Pool.Ready++
		}
		if usable(machine) {
			able++
		}
	}
	own.Available = min(able, set.Status.AvailableReplicas)
	own.Preserved = Kept(machines, own.Exist-own.Wanted, e.now)
	return own
}

// unseen says so if the manager has not acted on what was declared last. If it has tried in
// vain, which does not count as seen, that was said.
func (e *explainer) unseen(object metav1.Object, observed int64) {
	tried := slices.ContainsFunc(e.Report.Why, func(f report.Finding) bool { return f.Cause == report.ReplicaFailure })
	if generation := object.GetGeneration(); observed < generation && !tried {
		e.Why(notSeen, "", time.Time{}, "{generation}", strconv.FormatInt(generation, 10), "{seen}", strconv.FormatInt(observed, 10))
	}
}

// count explains numbers that nothing else explains.
func (e *explainer) count() {
	if len(e.Report.Why) > 0 {
		return
	}
	switch pool := e.Pool; {
	case pool.Exist < pool.Wanted:
		e.Why(growing, "", time.Time{}, "{exist}", number(pool.Exist), "{count}", messages.Machines(pool.Wanted))
	case pool.Exist-pool.Preserved > pool.Wanted:
		e.Why(shrinking, "", time.Time{}, "{count}", messages.Machines(pool.Exist-pool.Preserved), "{wanted}", number(pool.Wanted))
	default:
		e.Why(notCounted, "", time.Time{})
	}
}

func number(n int32) string { return strconv.Itoa(int(n)) }

// troubled says of those Machines that are not well why, one finding for each cause.
func (e *explainer) troubled(of []v1alpha1.Machine) {
	more := 0
	for i, g := range e.groups(of) {
		if i < MostExamples {
			e.group(g)
		} else {
			more += len(g)
		}
	}
	if more > 0 {
		e.Why(moreCauses, "", time.Time{}, "{count}", messages.Machines(more))
	}
}

// group explains Machines by the first of them.
func (e *explainer) group(g group) {
	first := g[0]
	facts, known := e.Examples[first.Name]
	if !known {
		facts = machine.Facts{Key: e.Key, Machine: first, Target: machine.Copied(first)}
		facts.Key.Name = first.Name
	}
	explained := machine.Explain(facts, e.now)
	if explained.Verdict != report.NotRunning && explained.Verdict != report.Deleting {
		return // since its pool was listed
	}
	finding := nothingKnown
	for _, f := range explained.Why {
		if f.Cause != report.ManagerNotRunning {
			finding = f
			break
		}
	}
	clause := finding
	clause.Code = "" // is kept beside the text
	is := map[report.Verdict]string{report.NotRunning: "not Running", report.Deleting: "being deleted"}[explained.Verdict]
	finding.Object = "Machine " + first.Name
	finding.Text = fmt.Sprintf("%s is %s: %s", finding.Object, is, clause)
	if len(g) > 1 {
		finding.Text = fmt.Sprintf("%s are %s, %s among them: %s", messages.Machines(len(g)), is, finding.Object, clause)
	}
	finding.Remedy = ""
	if len(explained.Advice) > 0 {
		finding.Remedy = explained.Advice[0]
	}
	e.Add(finding)
	e.Advise(seeMore, "{machine}", first.Name)
}
