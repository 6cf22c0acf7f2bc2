package explain

import (
	"cmp"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
	"github.com/millwright-dev/millwright/internal/lifecycle/preservation"
	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
	"github.com/millwright-dev/millwright/internal/pool/deletion"
	"github.com/millwright-dev/millwright/internal/pool/inplaceupdate"
)

// preservationPlan returns who requested a preservation, by the same rules as the controller.
func (e *explainer) preservationPlan() preservation.Plan {
	f := preservation.Facts{Machine: e.Machine, Node: e.Target.Node, Now: e.now, Timeout: timeouts.DefaultPreserve}
	if f.Hidden = e.Target.Problem != "" || e.Target.Unread || e.Target.Copied; f.Hidden {
		f.Node = nil
	}
	return preservation.Decide(f)
}

// preserved adds why the Machine is preserved, until when, and how to release it. It reports whether the Machine is
// preserved.
func (e *explainer) preserved() bool {
	plan := e.preservationPlan()
	if plan.Invalid != "" {
		e.Quote(report.Other, "", time.Time{}, "the "+plan.Invalid)
	}
	if !preservation.Active(e.Machine, e.now) {
		return false
	}
	if plan.Action != preservation.Preserve {
		e.Why(keptNoMore, "", time.Time{})
		return true
	}
	statement, release := kept, releaseMachine
	if e.Machine.Status.CurrentStatus.Phase == v1alpha1.MachineFailed {
		statement = keptFailed
	}
	if plan.LastApplied != "" {
		release = releaseNode
	}
	values := []string{"{annotation}", v1alpha1.AnnotationKeyPreserve, "{whose}", ofWhom[plan.LastApplied != ""]}
	e.Why(statement, "", time.Time{}, append(values, "{why}", e.Text(keptFor[plan.Value], values...), "{release}", e.Text(release, values...))...)
	if n := e.Target.Node; n != nil && preservation.MayDrain(e.Machine) && !preservation.Drained(n) {
		e.drainLeft(drained{e.Since, v1alpha1.LabelKeyForceDrain, ""})
	}
	e.Next(plan.Expiry.Time, preservedUntil)
	return true
}

// NamedAndKept reports whether a Machine was named for deletion but its set does not delete it, because the Machine
// is preserved or the replicas were not reduced.
func NamedAndKept(machine *v1alpha1.Machine, set *v1alpha1.MachineSet, now time.Time) bool {
	if deletion.Marked(machine) == "" || set == nil || report.IsDeleting(machine) || report.IsDeleting(set) {
		return false
	}
	return preservation.Active(machine, now) || !deletion.Named(machine, set) && set.Status.Replicas <= set.Spec.Replicas
}

// named adds that the Machine was named for deletion but is kept. Autoscalers cordon the nodes of the Machines that
// they name.
func (e *explainer) named() {
	if !NamedAndKept(e.Machine, e.Set, e.now) {
		return
	}
	statement, cordoned, remedy := namedKept, "", ""
	if preservation.Active(e.Machine, e.now) {
		statement = namedPreserved
	}
	if n := e.Target.Node; n != nil && n.Spec.Unschedulable {
		cordoned, remedy = "; its node is cordoned", "; kubectl uncordon "+n.Name
	}
	pool := "machine set " + e.Set.Name
	if e.Deployment != nil {
		pool = "deployment " + e.Deployment.Name
	}
	marked, _ := time.Parse(time.RFC3339, e.Machine.Annotations[v1alpha1.AnnotationKeyMarkedForDeletionTime])
	e.Why(statement, "", marked, "{cordoned}", cordoned, "{pool}", pool, "{uncordon}", remedy, "{trigger}", v1alpha1.AnnotationKeyTriggerDeletion,
		"{priority}", v1alpha1.AnnotationKeyMachinePriority, "{marked}", v1alpha1.AnnotationKeyMarkedForDeletionTime)
	if cordoned != "" && statement == namedPreserved {
		e.Advise(uncordon)
	}
}

// updating adds the state of an in-place update of the node, and what the update waits for.
func (e *explainer) updating() {
	state, phase := noderef.Condition(e.conditions(), v1alpha1.NodeInPlaceUpdate), e.Machine.Status.CurrentStatus.Phase
	if state == nil {
		state = &corev1.NodeCondition{}
	}
	why := ""
	if n := e.Target.Node; n != nil {
		why = n.Annotations[v1alpha1.AnnotationKeyMachineUpdateFailedReason]
	}
	if inplaceupdate.Unanswered(e.Machine, e.Target.Node) {
		e.Why(updateUnanswered, "", time.Time{})
		return
	}
	statement, known, over := updateOf(state.Reason, phase, why != "")
	if over {
		return
	}
	if !known {
		if is := e.last.Type; is == v1alpha1.MachineOperationInPlaceUpdate || is == v1alpha1.MachineOperationDrainNode {
			e.Why(updateQuoted, "", e.reported, "{text}", e.message)
		}
		return
	}
	e.Why(statement, "", state.LastTransitionTime.Time, "{text}", cmp.Or(why, "the agent reported no reason"), "{label}", v1alpha1.LabelKeyNodeSelectedForUpdate)
	switch {
	case state.Reason == v1alpha1.SelectedForUpdate && phase != v1alpha1.MachineInPlaceUpdating:
		e.drainLeft(drained{state.LastTransitionTime.Time, v1alpha1.LabelKeyForceDrain, ""})
	case phase == v1alpha1.MachineInPlaceUpdating:
		t := timeouts.InPlaceUpdate(e.Machine, timeouts.DefaultInPlaceUpdate)
		e.Earliest(t.Deadline(e.Since, report.LeaderSince(e.Lease)), updateTimesOut, "{timeout}", describe(t, "inPlaceUpdate"))
	}
}

// updateOf returns the statement about an in-place update whose condition has the given reason, and whether there
// is one. If over is true, the update completed earlier. explained reports whether the agent reported the reason
// for a failure.
func updateOf(reason string, phase v1alpha1.MachinePhase, explained bool) (statement report.Statement, known, over bool) {
	statement, known = updates[reason]
	switch failed := phase == v1alpha1.MachineInPlaceUpdateFailed; {
	case failed && explained:
		return updates[v1alpha1.UpdateFailed], true, false
	case failed && reason != v1alpha1.UpdateFailed:
		return updateSilent, true, false
	case reason == v1alpha1.UpdateSuccessful && phase != v1alpha1.MachineInPlaceUpdateSuccessful:
		return statement, known, true
	}
	return statement, known, false
}

// drainLeft explains a drain that is not part of a deletion, if pods or volumes are left.
func (e *explainer) drainLeft(d drained) {
	if e.podsLeft() || len(e.Target.Attachments) > 0 {
		e.drain(d)
	}
}
