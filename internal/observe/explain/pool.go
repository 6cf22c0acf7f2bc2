package explain

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/preservation"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

type poolExplainer struct {
	PoolFacts
	*report.Builder
	now time.Time
	// object is the explained one; nil if it does not exist.
	object metav1.Object
	// current is the set of the newest template, of which newest counts the Machines; nil if there
	// is none.
	current *v1alpha1.MachineSet
	newest  report.Part
}

// Pool explains a set or deployment: why it does not have the Machines that it wants.
func Pool(facts PoolFacts, now time.Time) report.Report {
	e := &poolExplainer{PoolFacts: facts, now: now}
	empty := report.Report{Namespace: e.Key.Namespace, At: now, Unread: facts.Unread}
	if e.Kind == KindSet {
		empty.MachineSet = e.Key.Name
	} else {
		empty.MachineDeployment = e.Key.Name
	}
	e.Builder = report.New(empty, e.Kind+" "+e.Key.String(), "{name}", e.Key.Name)
	if e.Exists() {
		e.existing()
	} else {
		e.gone()
	}
	// What only follows, as the annotations of sets those of their deployment, is not shown.
	e.Show(e.Events, func(event *corev1.Event) bool {
		kind := event.InvolvedObject.Kind
		return kind != KindMachine && event.Type == corev1.EventTypeWarning || kind == e.Kind && event.Reason != "RefreshedMachineSet"
	})
	return e.Report
}

func (e *poolExplainer) gone() {
	if n := len(e.Events); n > 0 {
		e.Since = report.Time(&e.Events[n-1])
		e.Conclude(report.Gone, "is gone; its last event is from "+report.Clock(e.Since, e.now), nil)
		return
	}
	e.Conclude(report.NotFound, "does not exist, and nothing tells that it ever did", nil)
	e.Similar(e.Names, e.Key.Name, strings.ToLower(e.Kind)+"s")
}

func (e *poolExplainer) existing() {
	e.current = e.PoolFacts.Current()
	if e.Kind == KindDeployment {
		e.object = e.Deployment
	} else {
		e.object = e.Sets[0]
	}
	e.count()
	e.Manager(e.Lease, "sets and deployments")
	e.Manager(e.MachineLease, "machines")
	if leaving(e.object) {
		e.deleting()
		return
	}
	if e.Kind == KindDeployment {
		e.deployment()
	} else {
		e.set(e.current, true)
	}
	e.troubled(e.Machines)
	if e.Kind == KindDeployment {
		e.late()
		e.rollout()
	}
	e.remarks()
	p := e.Pool
	complete := min(p.Available, e.newest.Available) >= p.Wanted && p.Exist-p.Preserved == p.Wanted && p.Updated-e.newest.Preserved == p.Wanted
	what := e.has(complete)
	switch unlisted := e.unlisted(); {
	case unlisted != "":
		e.Conclude(report.Unknown, what+" by its status. It cannot be told whether that is so, and why: "+unlisted+" cannot be read", nil)
	case complete && len(e.Report.Why) > 0:
		e.Conclude(report.Healthy, what+", but", e.Report.Why)
	case complete:
		e.Conclude(report.Healthy, what, nil)
	default:
		e.numbers()
		e.Conclude(report.Incomplete, what, e.Report.Why)
	}
}

func (e *poolExplainer) unlisted() string {
	switch {
	case e.SetsUnread:
		return "its machine sets"
	case e.MachinesUnread:
		return "its machines"
	}
	return ""
}

func (e *poolExplainer) has(complete bool) string {
	pool, wanted := e.Pool, messages.Machines(e.Pool.Wanted)
	switch {
	case pool.Wanted == 0 && pool.Exist == 0:
		return "wants no machines, and has none"
	case complete && pool.Wanted == 1:
		return "has the machine that it wants"
	case complete:
		return fmt.Sprintf("has all %s that it wants", wanted)
	}
	what := fmt.Sprintf("has %d of %s available", pool.Available, wanted)
	if pool.Available > pool.Wanted {
		what = fmt.Sprintf("wants %s and has %d available", wanted, pool.Available)
	}
	if e.Kind == KindDeployment && pool.Updated < pool.Exist {
		what += fmt.Sprintf(" (%d of %d %s of its newest template)", pool.Updated, pool.Exist, messages.Are(pool.Updated))
	}
	return what
}

// count counts the Machines, or takes the numbers of the status if the sets cannot be read.
func (e *poolExplainer) count() {
	pool := &report.Pool{}
	e.Pool, e.Since = pool, e.object.GetCreationTimestamp().Time
	for _, set := range e.Sets {
		part := e.part(set)
		pool.Exist += part.Exist
		pool.Available += part.Available
		pool.Preserved += part.Preserved
		if e.current == set {
			pool.Updated, e.newest = part.Exist, part
		}
		if e.Kind == KindDeployment && (part.Wanted > 0 || part.Exist > 0) {
			pool.Sets = append(pool.Sets, part)
		}
	}
	if e.SetsUnread {
		status := e.Deployment.Status
		pool.Exist, pool.Updated, pool.Ready, pool.Available = status.Replicas, status.UpdatedReplicas, status.ReadyReplicas, status.AvailableReplicas
		e.newest.Available = min(status.AvailableReplicas, status.UpdatedReplicas)
	}
	if e.Kind == KindDeployment {
		pool.Wanted, e.Identity.Class = e.Deployment.Spec.Replicas, e.Deployment.Spec.Template.Spec.Class.Name
		return
	}
	pool.Wanted, e.Identity.Class = e.Sets[0].Spec.Replicas, e.Sets[0].Spec.Template.Spec.Class.Name
	if e.Deployment != nil {
		e.Identity.Deployment = e.Deployment.Name
	}
}

// part counts the Machines of a set. Its status, which may be older than the list, says which are
// available.
func (e *poolExplainer) part(set *v1alpha1.MachineSet) report.Part {
	part := report.Part{Name: set.Name, Revision: set.Annotations[v1alpha1.AnnotationKeyRevision], Wanted: set.Spec.Replicas}
	if e.MachinesUnread {
		part.Exist, part.Available = set.Status.Replicas, set.Status.AvailableReplicas
		e.Pool.Ready += set.Status.ReadyReplicas
		return part
	}
	machines := e.Of(set)
	for _, machine := range machines {
		if leaving(machine) {
			e.Pool.Leaving++
			continue
		}
		part.Exist++
		if usable(machine) {
			part.Available++
		}
		if machine.Status.CurrentStatus.Phase == v1alpha1.MachineRunning {
			e.Pool.Ready++
		}
	}
	part.Available = min(part.Available, set.Status.AvailableReplicas)
	part.Preserved = Kept(machines, part.Exist-part.Wanted, e.now)
	return part
}

// Kept returns how many of the Machines of a set that exceed what it wants are preserved.
func Kept(machines []*v1alpha1.Machine, beyond int32, now time.Time) int32 {
	var kept int32
	for _, machine := range machines {
		if !leaving(machine) && preservation.Active(machine, now) {
			kept++
		}
	}
	return min(kept, max(0, beyond))
}

// numbers explains numbers that nothing else explains.
func (e *poolExplainer) numbers() {
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

// unseen says that the manager has not acted on the last change, unless it was said that it failed
// to: that does not count as seen.
func (e *poolExplainer) unseen(observed int64) {
	failed := slices.ContainsFunc(e.Report.Why, func(f report.Finding) bool { return f.Cause == report.ReplicaFailure })
	if generation := e.object.GetGeneration(); observed < generation && !failed {
		e.Why(notSeen, "", time.Time{}, "{generation}", strconv.FormatInt(generation, 10), "{seen}", strconv.FormatInt(observed, 10))
	}
}
