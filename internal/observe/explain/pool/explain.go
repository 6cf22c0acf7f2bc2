// Package pool says why sets and deployments do not have the Machines that they want.
//
// It is pure, as package explain is: each Machine that is not well is explained there.
package pool

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/observe/explain"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
	"github.com/millwright-dev/millwright/internal/pool/liveupdate"
	"github.com/millwright-dev/millwright/internal/pool/reserve"
	"github.com/millwright-dev/millwright/internal/pool/rollout"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

type explainer struct {
	Facts
	*report.Builder
	now time.Time
	// object is the explained one; nil if it does not exist.
	object client.Object
	// current is the set of the newest template, of which newest counts the Machines; nil if there
	// is none.
	current *v1alpha1.MachineSet
	newest  report.Part
	// change is how machines get another class without being replaced; nil if they do not.
	change *liveupdate.Pool
}

// Explain explains a set or deployment: why it does not have the Machines that it wants.
func Explain(facts Facts, now time.Time) report.Report {
	e := &explainer{Facts: facts, now: now}
	empty := report.Report{Namespace: e.Key.Namespace, At: now, Unread: facts.Unread}
	if e.Kind == explain.KindSet {
		empty.MachineSet = e.Key.Name
	} else {
		empty.MachineDeployment = e.Key.Name
	}
	e.Builder = report.New(empty, e.Kind+" "+e.Key.String(), "{name}", e.Key.Name)
	switch {
	case !e.Exists():
		e.gone()
	case e.Kind == explain.KindDeployment:
		e.object = e.Deployment
		e.existing()
	default:
		e.object = e.Sets[0]
		e.existing()
	}
	// What only follows, as the annotations of sets those of their deployment, is not shown.
	e.Show(e.Events, func(event *corev1.Event) bool {
		kind := event.InvolvedObject.Kind
		return kind != explain.KindMachine && event.Type == corev1.EventTypeWarning || kind == e.Kind && event.Reason != "RefreshedMachineSet"
	})
	return e.Report
}

func (e *explainer) gone() {
	if n := len(e.Events); n > 0 {
		e.Since = report.Time(&e.Events[n-1])
		e.Conclude(report.Gone, "is gone; its last event is from "+report.Clock(e.Since, e.now), nil)
		return
	}
	e.Conclude(report.NotFound, "does not exist, and nothing tells that it ever did", nil)
	e.Similar(e.Names, e.Key.Name, strings.ToLower(e.Kind)+"s")
}

func (e *explainer) existing() {
	e.current, e.change = e.Facts.Current(), e.ClassChange(e.now)
	e.count()
	e.Manager(e.Lease, "sets and deployments")
	e.Manager(e.MachineLease, "machines")
	if report.Leaves(e.object) {
		e.deleting()
		return
	}
	if e.Kind == explain.KindDeployment {
		e.deployment()
	} else {
		e.set(e.current)
		e.unseen(e.current.Status.ObservedGeneration)
	}
	e.troubled(e.Machines)
	if e.Kind == explain.KindDeployment {
		e.late()
		e.rollout()
	}
	e.remarks()
	e.answer()
}

func (e *explainer) answer() {
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

func (e *explainer) unlisted() string {
	switch {
	case e.SetsUnread:
		return "its machine sets"
	case e.MachinesUnread:
		return "its machines"
	}
	return ""
}

func (e *explainer) has(complete bool) string {
	pool, wanted := e.Pool, messages.Machines(e.Pool.Wanted)
	if pool.Excess > 0 {
		wanted += fmt.Sprintf(" (%d in excess)", pool.Excess)
	}
	switch {
	case pool.Wanted == 0 && pool.Exist == 0:
		return "wants no machines, and has none"
	case complete && pool.Excess > 0:
		return fmt.Sprintf("has what it wants: %s for pods, and %d in excess", messages.Machines(pool.Wanted-pool.Excess), pool.Excess)
	case complete && pool.Wanted == 1:
		return "has the machine that it wants"
	case complete:
		return fmt.Sprintf("has all %s that it wants", wanted)
	}
	what := fmt.Sprintf("has %d of %s available", pool.Available, wanted)
	if pool.Available > pool.Wanted {
		what = fmt.Sprintf("wants %s and has %d available", wanted, pool.Available)
	}
	if e.Kind == explain.KindDeployment && pool.Updated < pool.Exist {
		what += fmt.Sprintf(" (%d of %d %s of its newest template)", pool.Updated, pool.Exist, messages.Are(pool.Updated))
	}
	return what
}

// count counts the Machines, or takes the numbers of the status if the sets cannot be read.
func (e *explainer) count() {
	pool := &report.Pool{}
	e.Pool, e.Since = pool, e.object.GetCreationTimestamp().Time
	for _, set := range e.Sets {
		part := e.part(set)
		pool.Add(part.Counts)
		if part.Current {
			pool.Updated, e.newest = part.Exist-e.change.Left(), part
		}
		if e.Kind == explain.KindDeployment && (part.Current || !part.Empty() || part.Leaving > 0) {
			pool.Sets = append(pool.Sets, part)
		}
	}
	if e.SetsUnread {
		status := e.Deployment.Status
		pool.Exist, pool.Updated, pool.Ready, pool.Available = status.Replicas, status.UpdatedReplicas, status.ReadyReplicas, status.AvailableReplicas
		e.apart(&pool.Exist, &pool.Updated, &pool.Ready, &pool.Available)
		e.newest.Available = min(pool.Available, pool.Updated)
	}
	if e.Kind == explain.KindDeployment {
		pool.Wanted, pool.Excess = reserve.Desired(e.Deployment), reserve.Excess(e.Deployment)
		e.Identity.Class = e.Deployment.Spec.Template.Spec.Class.Name
		return
	}
	e.Identity.Class = e.current.Spec.Template.Spec.Class.Name
	if e.Deployment != nil {
		e.Identity.Deployment = e.Deployment.Name
	}
}

// apart adds the reserve to numbers of the status, which counts it apart: it does not say how much of it
// is ready, so that is taken to be so if all others are.
func (e *explainer) apart(numbers ...*int32) {
	for _, number := range numbers {
		if *number >= e.Deployment.Spec.Replicas {
			*number += e.Deployment.Status.ExcessReplicas
		}
	}
}

// part counts the Machines of a set. Its status, which may be older than the list, says which are
// available.
func (e *explainer) part(set *v1alpha1.MachineSet) report.Part {
	part := report.Part{Name: set.Name, Revision: set.Annotations[v1alpha1.AnnotationKeyRevision], Current: set == e.current, Phases: map[string]int32{}}
	part.Wanted, part.Excess = set.Spec.Replicas, reserve.OfSet(set)
	if e.MachinesUnread {
		part.Exist, part.Ready, part.Available = set.Status.Replicas, set.Status.ReadyReplicas, set.Status.AvailableReplicas
		return part
	}
	machines := e.Of(set)
	for _, machine := range machines {
		phase := machine.Status.CurrentStatus.Phase
		if report.Leaves(machine) {
			part.Leaving++
			part.Phases[string(v1alpha1.MachineTerminating)]++
			continue
		}
		part.Phases[cmp.Or(string(phase), report.NoPhase)]++
		part.Exist++
		if usable(machine) {
			part.Available++
		}
		if phase == v1alpha1.MachineRunning {
			part.Ready++
		}
	}
	part.Available = min(part.Available, set.Status.AvailableReplicas)
	part.Preserved = rollout.Retained(set, machines, e.now)
	return part
}

// numbers explains numbers that nothing else explains.
func (e *explainer) numbers() {
	if len(e.Report.Why) > 0 {
		return
	}
	switch pool := e.Pool; {
	case pool.Exist < pool.Wanted:
		e.Why(growing, "", time.Time{}, "{exist}", fmt.Sprint(pool.Exist), "{count}", messages.Machines(pool.Wanted))
	case pool.Exist-pool.Preserved > pool.Wanted:
		e.Why(shrinking, "", time.Time{}, "{count}", messages.Machines(pool.Exist-pool.Preserved), "{wanted}", fmt.Sprint(pool.Wanted))
	default:
		e.Why(notCounted, "", time.Time{})
	}
}

// unseen says that the manager has not acted on the last change, unless it was said that it failed
// to, or refuses to: that does not count as seen.
func (e *explainer) unseen(observed int64) {
	refused := e.said(report.ReplicaFailure) || e.said(v1alpha1.CauseInvalidSpec)
	if generation := e.object.GetGeneration(); observed < generation && !refused {
		e.Why(notSeen, "", time.Time{}, "{generation}", strconv.FormatInt(generation, 10), "{seen}", strconv.FormatInt(observed, 10))
	}
}

// said reports whether there is a finding of a cause.
func (e *explainer) said(cause report.Cause) bool {
	return slices.ContainsFunc(e.Report.Why, func(f report.Finding) bool { return f.Cause == cause })
}
