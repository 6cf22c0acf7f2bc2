// Package pool explains why MachineSets and MachineDeployments do not have their desired Machines.
//
// Like package explain, which explains the individual Machines, it is pure.
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
	// object is the explained object. It is nil if it does not exist.
	object client.Object
	// current is the set with the latest template, and newest contains the numbers of its Machines. current is nil
	// if there is no such set.
	current *v1alpha1.MachineSet
	newest  report.Part
	// change describes how Machines get another class without being replaced. It is nil if they do not.
	change *liveupdate.Pool
}

// Explain explains why a set or deployment does not have its desired Machines.
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
	// Events about consequences, such as updates of a set's annotations after those of its deployment, are omitted.
	e.Show(e.Events, func(event *corev1.Event) bool {
		kind := event.InvolvedObject.Kind
		return kind != explain.KindMachine && event.Type == corev1.EventTypeWarning || kind == e.Kind && event.Reason != "RefreshedMachineSet"
	})
	return e.Report
}

func (e *explainer) gone() {
	if n := len(e.Events); n > 0 {
		e.Since = report.Time(&e.Events[n-1])
		e.Conclude(report.Gone, "no longer exists; its last event is from "+report.Clock(e.Since, e.now), nil)
		return
	}
	e.Conclude(report.NotFound, "does not exist, and no events mention it", nil)
	e.Similar(e.Names, e.Key.Name, strings.ToLower(e.Kind)+"s")
}

func (e *explainer) existing() {
	e.current, e.change = e.Facts.Current(), e.ClassChange(e.now)
	e.count()
	e.Manager(e.Lease, "machine sets and deployments")
	e.Manager(e.MachineLease, "machines")
	if report.IsDeleting(e.object) {
		e.deleting()
		return
	}
	if e.Kind == explain.KindDeployment {
		e.deployment()
	} else {
		e.set(e.current)
		e.notObserved(e.current.Status.ObservedGeneration)
	}
	e.unhealthy(e.Machines)
	if e.Kind == explain.KindDeployment {
		e.late()
		e.rollout()
	}
	e.otherProblems()
	e.conclude()
}

func (e *explainer) conclude() {
	p := e.Pool
	complete := min(p.Available, e.newest.Available) >= p.Desired && p.Exist-p.Preserved == p.Desired && p.Updated-e.newest.Preserved == p.Desired
	what := e.summary(complete)
	switch unlisted := e.unlisted(); {
	case unlisted != "":
		e.Conclude(report.Unknown, what+" according to its status; details are unknown because "+unlisted+" cannot be read", nil)
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

func (e *explainer) summary(complete bool) string {
	pool, desired := e.Pool, messages.Machines(e.Pool.Desired)
	if pool.Excess > 0 {
		desired += fmt.Sprintf(" (%d in excess)", pool.Excess)
	}
	switch {
	case pool.Desired == 0 && pool.Exist == 0:
		return "needs no machines and has none"
	case complete && pool.Excess > 0:
		return fmt.Sprintf("has all desired machines: %s for pods and %d in excess", messages.Machines(pool.Desired-pool.Excess), pool.Excess)
	case complete && pool.Desired == 1:
		return "has its desired machine"
	case complete:
		return fmt.Sprintf("has all %d desired machines", pool.Desired)
	}
	updated := ""
	if e.Kind == explain.KindDeployment && pool.Updated < pool.Exist {
		updated = fmt.Sprintf(" (%d of %d %s the latest template)", pool.Updated, pool.Exist, messages.Have(pool.Updated))
	}
	if pool.Available > pool.Desired {
		return fmt.Sprintf("has %s available%s, but only %s %s desired", messages.Machines(pool.Available), updated, desired, messages.Are(pool.Desired))
	}
	return fmt.Sprintf("has %d of %s available%s", pool.Available, desired, updated)
}

// count counts the Machines. If the sets cannot be read, it uses the numbers in the status.
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
		e.addExcess(&pool.Exist, &pool.Updated, &pool.Ready, &pool.Available)
		e.newest.Available = min(pool.Available, pool.Updated)
	}
	if e.Kind == explain.KindDeployment {
		pool.Desired, pool.Excess = reserve.Desired(e.Deployment), reserve.Excess(e.Deployment)
		e.Identity.Class = e.Deployment.Spec.Template.Spec.Class.Name
		return
	}
	e.Identity.Class = e.current.Spec.Template.Spec.Class.Name
	if e.Deployment != nil {
		e.Identity.Deployment = e.Deployment.Name
	}
}

// addExcess adds the reserve to numbers of the status, which counts it separately. The status does not contain how much
// of the reserve is ready, so addExcess assumes that all of it is ready if all other Machines are.
func (e *explainer) addExcess(numbers ...*int32) {
	for _, number := range numbers {
		if *number >= e.Deployment.Spec.Replicas {
			*number += e.Deployment.Status.ExcessReplicas
		}
	}
}

// part counts the Machines of a set. The number of available ones comes from the set's status, which can be older than
// the list.
func (e *explainer) part(set *v1alpha1.MachineSet) report.Part {
	part := report.Part{Name: set.Name, Revision: set.Annotations[v1alpha1.AnnotationKeyRevision], Current: set == e.current, Phases: map[string]int32{}}
	part.Desired, part.Excess = set.Spec.Replicas, reserve.OfSet(set)
	if e.MachinesUnread {
		part.Exist, part.Ready, part.Available = set.Status.Replicas, set.Status.ReadyReplicas, set.Status.AvailableReplicas
		return part
	}
	machines := e.Of(set)
	for _, machine := range machines {
		phase := machine.Status.CurrentStatus.Phase
		if report.IsDeleting(machine) {
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

// numbers explains a difference in the numbers if there is no other finding.
func (e *explainer) numbers() {
	if len(e.Report.Why) > 0 {
		return
	}
	switch pool := e.Pool; {
	case pool.Exist < pool.Desired:
		e.Why(growing, "", time.Time{}, "{exist}", fmt.Sprint(pool.Exist), "{count}", messages.Machines(pool.Desired))
	case pool.Exist-pool.Preserved > pool.Desired:
		e.Why(shrinking, "", time.Time{}, "{count}", messages.Machines(pool.Exist-pool.Preserved), "{desired}", fmt.Sprint(pool.Desired))
	default:
		e.Why(notCounted, "", time.Time{})
	}
}

// notObserved adds that the manager has not processed the latest change, unless a finding reports that this failed or
// was rejected, because a rejected change is not recorded as observed.
func (e *explainer) notObserved(observed int64) {
	refused := e.hasCause(report.ReplicaFailure) || e.hasCause(v1alpha1.CauseInvalidSpec)
	if generation := e.object.GetGeneration(); observed < generation && !refused {
		e.Why(notSeen, "", time.Time{}, "{generation}", strconv.FormatInt(generation, 10), "{seen}", strconv.FormatInt(observed, 10))
	}
}

// hasCause reports whether there is a finding with the given cause.
func (e *explainer) hasCause(cause report.Cause) bool {
	return slices.ContainsFunc(e.Report.Why, func(f report.Finding) bool { return f.Cause == cause })
}
