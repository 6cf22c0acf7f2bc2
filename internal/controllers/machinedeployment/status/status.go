// Package status derives the status of a MachineDeployment from the facts and what became of the plan.
//
// It is pure, and writes nothing. What keeps a deployment from its goal is a reason of a condition:
// see the DeploymentReason constants of the API.
package status

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/planner"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/revision"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// mostFailed is how many failed Machines a status lists, as in a set's status.
const mostFailed = 100

// longestMessage is how many bytes the message of a condition may have, as for an event. Webhooks
// answer with any length, and there may be any number of sets.
const longestMessage = 1024

// pass is one pass over a deployment, whose status is being made.
type pass struct {
	// Facts as they are after the plan.
	planner.Facts
	outcome planner.Outcome
	// reused reports whether an old set has become the current one in this pass.
	reused bool
	was    v1alpha1.MachineDeploymentStatus
	next   v1alpha1.MachineDeploymentStatus
}

// Next returns the status that follows from the facts and the outcome of their plan.
func Next(f planner.Facts, o planner.Outcome) v1alpha1.MachineDeploymentStatus {
	p := &pass{Facts: f.After(o), outcome: o, reused: o.Reused(f)}
	was := p.Deployment.Status
	p.was = was
	p.next = v1alpha1.MachineDeploymentStatus{
		ObservedGeneration: f.Deployment.Generation,
		Conditions:         slices.Clone(was.Conditions),
		CollisionCount:     was.CollisionCount,
		Selector:           metav1.FormatLabelSelector(f.Deployment.Spec.Selector),
	}
	if o.Failure != nil || o.Unmarked > 0 {
		p.next.ObservedGeneration = was.ObservedGeneration
	}
	if errors.Is(o.Failure, planner.ErrNameTaken) {
		collisions := int32(1)
		if was.CollisionCount != nil {
			collisions += *was.CollisionCount
		}
		p.next.CollisionCount = &collisions
	}
	p.count()
	p.availability()
	p.progress()
	p.replicaFailure()
	p.frozen()
	p.overlap()
	p.released()
	p.rollback()
	return p.next
}

// count adds up what the sets report.
func (p *pass) count() {
	plus := func(n, reported int32) int32 { return planner.Clamp(int64(n) + int64(max(0, reported))) }
	if p.Current != nil {
		p.next.UpdatedReplicas = max(0, p.Current.Status.Replicas)
	}
	for _, set := range p.All() {
		p.next.Replicas = plus(p.next.Replicas, set.Status.Replicas)
		p.next.ReadyReplicas = plus(p.next.ReadyReplicas, set.Status.ReadyReplicas)
		p.next.AvailableReplicas = plus(p.next.AvailableReplicas, set.Status.AvailableReplicas)
		p.next.PreservedFailedReplicas = plus(p.next.PreservedFailedReplicas, set.Status.PreservedFailedReplicas)
		if set.Status.FailedMachines != nil {
			for i := range *set.Status.FailedMachines {
				p.next.FailedMachines = append(p.next.FailedMachines, (*set.Status.FailedMachines)[i].DeepCopy())
			}
		}
	}
	p.next.UnavailableReplicas = planner.Clamp(planner.Total(p.All(), planner.Desired) - int64(p.next.AvailableReplicas))
	if more := len(p.next.FailedMachines) - mostFailed; more > 0 {
		p.next.FailedMachines = p.next.FailedMachines[:mostFailed]
		p.next.FailedMachines[mostFailed-1].LastOperation.Description += fmt.Sprintf(" (and at least %d more failed machines)", more)
	}
}

func (p *pass) availability() {
	_, unavailable := planner.Bounds(p.Deployment)
	if p.next.AvailableReplicas >= p.Deployment.Spec.Replicas-unavailable-p.next.PreservedFailedReplicas {
		p.set(condition(v1alpha1.MachineDeploymentAvailable, v1alpha1.ConditionTrue, v1alpha1.DeploymentReasonAvailable, "Deployment has minimum availability."))
		return
	}
	p.set(condition(v1alpha1.MachineDeploymentAvailable, v1alpha1.ConditionFalse, v1alpha1.DeploymentReasonUnavailable, "Deployment does not have minimum availability."))
}

// replicaFailure reports what failed and does not belong to a rollout: to scale a deployment whose
// rollout is over, paused or late, or to mark a Machine. Otherwise it repeats what the current set, or
// else an old one, reports.
func (p *pass) replicaFailure() {
	const kind = v1alpha1.MachineDeploymentReplicaFailure
	switch failure := p.outcome.Failure; {
	case failure != nil && !errors.Is(failure, planner.ErrNameTaken) && !slices.Contains(failures, Progress(p.next).Reason):
		p.set(condition(kind, v1alpha1.ConditionTrue, v1alpha1.DeploymentReasonSetUpdateError, failure.Error()))
		return
	case p.outcome.Unmarked > 0:
		message := p.outcome.MarkError().Error() + ". Its machine set is not scaled down until it is marked, since another machine would go."
		p.set(condition(kind, v1alpha1.ConditionTrue, v1alpha1.DeploymentReasonMarkError, message))
		return
	}
	for _, set := range slices.Backward(p.All()) { // the current one comes last
		for _, failure := range set.Status.Conditions {
			if failure.Type == v1alpha1.MachineSetReplicaFailure {
				p.set(condition(kind, failure.Status, failure.Reason, failure.Message))
				return
			}
		}
	}
	remove(&p.next, kind)
}

// frozen reports a set that creates nothing because too many Machines exist.
func (p *pass) frozen() {
	all := p.All()
	at := slices.IndexFunc(all, planner.Frozen)
	if at < 0 {
		remove(&p.next, v1alpha1.MachineDeploymentFrozen)
		return
	}
	message := fmt.Sprintf("MachineSet %q is frozen: more machines exist than it should have. It creates none until some are gone.", all[at].Name)
	p.set(condition(v1alpha1.MachineDeploymentFrozen, v1alpha1.ConditionTrue, v1alpha1.DeploymentReasonFrozen, message))
}

// overlap reports other deployments that select the same Machines. Each keeps its own, but which of
// them adopts one that loses its owner is chance.
func (p *pass) overlap() {
	if len(p.Overlaps) == 0 {
		remove(&p.next, v1alpha1.MachineDeploymentSelectorOverlap)
		return
	}
	message := fmt.Sprintf("spec.selector: the same machines are selected by %s. Give each deployment a label of its own.", firstOf(p.Overlaps))
	p.set(condition(v1alpha1.MachineDeploymentSelectorOverlap, v1alpha1.ConditionTrue, v1alpha1.DeploymentReasonSelectorOverlap, message))
}

// released reports sets with Machines that were the deployment's and do not match its selector any
// more. As in MCM, they are released with their Machines.
func (p *pass) released() {
	if len(p.Released) == 0 {
		remove(&p.next, v1alpha1.MachineDeploymentSetReleased)
		return
	}
	var names []string
	for _, set := range p.Released {
		names = append(names, fmt.Sprintf("%s (machines: %d)", set.Name, planner.Existing(set)))
	}
	slices.Sort(names)
	message := fmt.Sprintf("spec.selector: it does not match machine sets that were the deployment's: %s. "+
		"They keep their machines, which are neither counted nor updated here. Delete them, or select them again.", firstOf(names))
	p.set(condition(v1alpha1.MachineDeploymentSetReleased, v1alpha1.ConditionTrue, v1alpha1.DeploymentReasonSetReleased, message))
}

// rollback drops the refusal of a rollback when another rollout begins. The first set of a deployment
// is none.
func (p *pass) rollback() {
	if p.begins() && revision.Number(p.Deployment) > 0 {
		remove(&p.next, v1alpha1.MachineDeploymentRollbackRefused)
	}
}

// firstOf names the first of many.
func firstOf(names []string) string {
	const most = 3
	named := strings.Join(names[:min(most, len(names))], ", ")
	if more := len(names) - most; more > 0 {
		named += fmt.Sprintf(" and %d more", more)
	}
	return named
}

// set puts a condition in.
func (p *pass) set(is v1alpha1.MachineDeploymentCondition) { set(&p.next, is, p.Now) }

func condition(kind v1alpha1.MachineDeploymentConditionType, status v1alpha1.ConditionStatus, reason, message string) v1alpha1.MachineDeploymentCondition {
	return v1alpha1.MachineDeploymentCondition{Type: kind, Status: status, Reason: reason, Message: messages.Shorten(message, longestMessage)}
}

// set puts a condition into a status. One that does not differ keeps its times.
func set(status *v1alpha1.MachineDeploymentStatus, is v1alpha1.MachineDeploymentCondition, now time.Time) {
	at := indexOf(*status, is.Type)
	if at < 0 {
		is.LastUpdateTime, is.LastTransitionTime = metav1.NewTime(now), metav1.NewTime(now)
		status.Conditions = append(status.Conditions, is)
		return
	}
	was := &status.Conditions[at]
	is.LastUpdateTime, is.LastTransitionTime = was.LastUpdateTime, was.LastTransitionTime
	if *was == is {
		return
	}
	is.LastUpdateTime = metav1.NewTime(now)
	if was.Status != is.Status {
		is.LastTransitionTime = metav1.NewTime(now)
	}
	*was = is
}

// indexOf returns where a status has a condition; negative if it has none of that type.
func indexOf(status v1alpha1.MachineDeploymentStatus, kind v1alpha1.MachineDeploymentConditionType) int {
	return slices.IndexFunc(status.Conditions, func(c v1alpha1.MachineDeploymentCondition) bool { return c.Type == kind })
}

func remove(status *v1alpha1.MachineDeploymentStatus, kind v1alpha1.MachineDeploymentConditionType) {
	status.Conditions = slices.DeleteFunc(status.Conditions, func(c v1alpha1.MachineDeploymentCondition) bool { return c.Type == kind })
}
