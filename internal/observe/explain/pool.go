package explain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// ExplainPool makes a report of what is known of a set or deployment at a moment: why it
// does not have the Machines that it wants. It never fails: what is not known is said to be
// so.
func ExplainPool(facts PoolFacts, now time.Time) Report {
	e := &poolExplainer{PoolFacts: facts, writer: writer{now: now, subject: facts.Kind + " " + facts.Key.String()}}
	e.report = Report{Namespace: facts.Key.Namespace, At: now, Unread: facts.Unread}
	if facts.Kind == kindDeployment {
		e.report.MachineDeployment = facts.Key.Name
	} else {
		e.report.MachineSet = facts.Key.Name
	}
	if facts.exists() {
		e.living()
	} else {
		e.gone()
	}
	e.quote(facts.Events, e.worth)
	return e.report
}

// poolExplainer fills the report about a set or deployment.
type poolExplainer struct {
	PoolFacts
	writer
}

// object is what is asked about.
func (e *poolExplainer) object() metav1.Object {
	if e.Kind == kindDeployment {
		return e.Deployment
	}
	return &e.Sets[0]
}

// gone says what there is to say of an object that does not exist.
func (e *poolExplainer) gone() {
	if len(e.Events) > 0 {
		e.report.Since = timeOf(&e.Events[len(e.Events)-1])
		e.answer(Gone, "is gone; its last event is from "+clockOf(e.report.Since, e.now), nil)
		return
	}
	e.answer(NotFound, "does not exist, and nothing tells that it ever did", nil)
	e.similar(e.Names, e.Key.Name, strings.ToLower(e.Kind)+"s", e.Key.Namespace)
}

// living explains a set or deployment that exists.
func (e *poolExplainer) living() {
	e.identify()
	e.noManager(e.Lease, "sets and deployments")
	e.noManager(e.MachineLease, "machines")
	if deleted := e.object().GetDeletionTimestamp(); deleted != nil {
		e.deleting(deleted.Time)
		return
	}
	if e.Kind == kindDeployment {
		e.deployed()
	} else {
		e.declared(&e.Sets[0])
	}
	e.troubled(e.Machines)
	if e.Kind == kindDeployment {
		e.late()
		e.rollout()
	}
	e.remarks()
	pool := e.report.Pool
	what := e.has()
	switch {
	case e.unlisted() != "":
		e.answer(Unknown, what+" by its status. It cannot be told whether that is so, and why: "+e.unlisted()+" cannot be read", nil)
	case pool.complete() && len(e.report.Why) == 0:
		e.answer(Healthy, what, nil)
	case pool.complete():
		e.answer(Healthy, what+", but", e.report.Why)
		e.report.Answer = strings.Replace(e.report.Answer, "but: ", "but ", 1)
	default:
		e.count()
		e.answer(Incomplete, what, e.report.Why)
	}
}

// complete reports whether all Machines are there, can be used, and are of the newest template.
func (p *Pool) complete() bool {
	return min(p.Available, p.current.Available) >= p.Wanted && p.Exist-p.Preserved == p.Wanted && p.Updated-p.current.Preserved == p.Wanted
}

// unlisted is what could not be listed of that which is the object's; empty if all was.
func (e *poolExplainer) unlisted() string {
	switch {
	case e.SetsUnread:
		return "its machine sets"
	case e.MachinesUnread:
		return "its machines"
	}
	return ""
}

// has says how many Machines there are.
func (e *poolExplainer) has() string {
	pool := e.report.Pool
	switch {
	case pool.Wanted == 0 && pool.Exist == 0:
		return "wants no machines, and has none"
	case pool.complete() && pool.Wanted == 1:
		return "has the machine that it wants"
	case pool.complete():
		return fmt.Sprintf("has all %s that it wants", machines(pool.Wanted))
	}
	what := fmt.Sprintf("has %d of %s available", pool.Available, machines(pool.Wanted))
	if pool.Available > pool.Wanted {
		what = fmt.Sprintf("wants %s and has %d available", machines(pool.Wanted), pool.Available)
	}
	if e.Kind == kindDeployment && pool.Updated < pool.Exist {
		what += fmt.Sprintf(" (%d of %d %s of its newest template)", pool.Updated, pool.Exist, messages.Are(pool.Updated))
	}
	return what
}

func machines[N int | int32](n N) string { return messages.Machines(n) }

// identify counts. A deployment's Machines are counted by its sets' status, a set's by
// itself: what is being deleted does not count.
func (e *poolExplainer) identify() {
	pool := &Pool{}
	e.report.Pool = pool
	e.report.Since = e.object().GetCreationTimestamp().Time
	for i := range e.Sets {
		set := &e.Sets[i]
		own := e.part(set)
		pool.Exist += own.Exist
		pool.Available += own.Available
		pool.Preserved += own.Preserved
		if e.current() == set {
			pool.Updated, pool.current = own.Exist, own
		}
		if e.Kind == kindDeployment && (own.Wanted > 0 || own.Exist > 0) {
			pool.Sets = append(pool.Sets, own)
		}
	}
	if e.SetsUnread {
		status := e.Deployment.Status
		pool.Exist, pool.Updated, pool.Ready, pool.Available = status.Replicas, status.UpdatedReplicas, status.ReadyReplicas, status.AvailableReplicas
		pool.current.Available = min(status.AvailableReplicas, status.UpdatedReplicas)
	}
	if e.Kind == kindDeployment {
		pool.Wanted = e.Deployment.Spec.Replicas
		e.report.Identity.Class = e.Deployment.Spec.Template.Spec.Class.Name
		return
	}
	pool.Wanted = e.Sets[0].Spec.Replicas
	e.report.Identity.Class = e.Sets[0].Spec.Template.Spec.Class.Name
	if e.Deployment != nil {
		e.report.Identity.Deployment = e.Deployment.Name
	}
}

// part counts the Machines of a set. Its status knows which are available, and may be older
// than the list.
func (e *poolExplainer) part(set *v1alpha1.MachineSet) Part {
	own := Part{Name: set.Name, Revision: revisionOf(set), Wanted: set.Spec.Replicas}
	if e.MachinesUnread {
		own.Exist, own.Available = set.Status.Replicas, set.Status.AvailableReplicas
		e.report.Pool.Ready += set.Status.ReadyReplicas
		return own
	}
	able, machines := int32(0), e.of(set)
	for _, machine := range machines {
		if leavingPool(machine) {
			e.report.Pool.Leaving++
			continue
		}
		own.Exist++
		if machine.Status.CurrentStatus.Phase == v1alpha1.MachineRunning {
			e.report.Pool.Ready++
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
func (e *poolExplainer) unseen(object metav1.Object, observed int64) {
	tried := slices.ContainsFunc(e.report.Why, func(f Finding) bool { return f.Cause == SetBlocked })
	if observed < object.GetGeneration() && !tried {
		e.why(NotLookedAt, "", time.Time{}, "the manager has not acted yet on what was changed last (generation %d, it has seen %d)", object.GetGeneration(), observed)
	}
}

// count explains numbers that nothing else explains.
func (e *poolExplainer) count() {
	if len(e.report.Why) > 0 {
		return
	}
	pool := e.report.Pool
	switch {
	case pool.Exist < pool.Wanted:
		e.why(Scaling, "", time.Time{}, "%d of %s exist: the others are being made", pool.Exist, machines(pool.Wanted))
	case pool.Exist-pool.Preserved > pool.Wanted:
		e.why(Scaling, "", time.Time{}, "%s exist, and %d are wanted: the others are being deleted", machines(pool.Exist-pool.Preserved), pool.Wanted)
	default:
		e.why(Scaling, "", time.Time{}, "all machines run, which the manager has not counted yet")
	}
}

// troubled says of those Machines that are not well why, one finding for each cause.
func (e *poolExplainer) troubled(of []v1alpha1.Machine) {
	all := e.groups(of)
	for _, g := range all[:min(len(all), mostExamples)] {
		e.group(g)
	}
	more := 0
	for _, g := range all[min(len(all), mostExamples):] {
		more += len(g)
	}
	if more > 0 {
		e.why(Other, "", time.Time{}, "%s more are not well for other causes: kubectl -n %s get %s", machines(more), e.Key.Namespace, machineResource)
	}
}

func (e *poolExplainer) group(g group) {
	machine := g[0]
	facts, known := e.Examples[machine.Name]
	if !known {
		facts = Facts{Key: e.Key, Machine: machine, Target: copied(machine)}
		facts.Key.Name = machine.Name
	}
	report := Explain(facts, e.now)
	if report.Verdict == Healthy || report.Verdict == Gone || report.Verdict == NotFound {
		return // since its pool was listed
	}
	said := slices.DeleteFunc(slices.Clone(report.Why), func(f Finding) bool { return f.Cause == NoManager })
	first := Finding{Cause: Other, Text: "nothing is known of why"}
	if len(said) > 0 {
		first = said[0]
	}
	is, are := "is not Running", "are not Running"
	if report.Verdict == Deleting {
		is, are = "is being deleted", "are being deleted"
	}
	clause := first
	clause.Code = "" // is kept beside the text
	first.Object = "Machine " + machine.Name
	first.Text = fmt.Sprintf("%s %s: %s", first.Object, is, clause.String())
	if len(g) > 1 {
		first.Text = fmt.Sprintf("%s %s, %s among them: %s", machines(len(g)), are, first.Object, clause.String())
	}
	if len(report.Advice) > 0 {
		first.Remedy = report.Advice[0]
		e.advise("%s", first.Remedy)
	}
	e.report.Why = append(e.report.Why, first)
	e.advise("See what happens next, and more: millwright explain machine -n %s %s", e.Key.Namespace, machine.Name)
}

// worth reports whether an event is worth showing: what went wrong, and what was decided. That
// something follows, like annotations of sets those of their deployment, is neither.
func (e *poolExplainer) worth(event *corev1.Event) bool {
	return event.Type == corev1.EventTypeWarning || event.InvolvedObject.Kind == e.Kind && event.Reason != "RefreshedMachineSet"
}
