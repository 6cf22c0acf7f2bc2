package machine

import (
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
)

// deleting explains what a deletion waits for.
func (e *explainer) deleting() {
	e.Since = e.Machine.DeletionTimestamp.Time
	e.replaced()
	switch finalizers := e.Machine.Finalizers; {
	case !slices.Contains(finalizers, v1alpha1.FinalizerMCM) && !slices.Contains(finalizers, v1alpha1.FinalizerLegacy):
		e.Held(finalizers, "", "the machine", e.Machine)
	case e.last().Type != v1alpha1.MachineOperationDelete:
		e.Why(notBegun, "", e.Since)
	case e.failedFor(v1alpha1.CauseInstanceShared):
		e.Why(instanceShared, "", e.reported(), "{text}", e.says())
	default:
		e.waiting()
	}
	e.Conclude(report.Deleting, "is being deleted", e.Report.Why)
	e.WhyDeleted()
}

// failedFor reports whether the deletion does not go on for a cause.
func (e *explainer) failedFor(cause string) bool {
	note := e.noted(e.Machine.DeletionTimestamp.Time)
	return e.didFail() && note != nil && report.CauseOf(note) == cause
}

func (e *explainer) didFail() bool { return e.last().State == v1alpha1.MachineStateFailed }

// waiting explains what the step of a deletion waits for.
func (e *explainer) waiting() {
	switch e.step() {
	case v1alpha1.StepDrain:
		e.draining()
	case v1alpha1.StepDeleteAttachments:
		e.attachments()
		e.Why(managerSays, "", e.reported(), "{text}", e.says())
		e.Next(time.Time{}, detachesFirst)
	case v1alpha1.StepDeleteInstance:
		e.deletingInstance()
	case v1alpha1.StepDeleteNode:
		e.deletingNode()
	default:
		if f, ok := e.failure(); ok {
			e.notDeleted(f)
			return
		}
		e.Why(quoted, "", e.reported(), "{text}", e.says())
	}
}

// step is the step of the deletion that is not done. Where it fails the manager's event tells;
// else it follows from what is left, in the order in which things go.
func (e *explainer) step() string {
	noted := ""
	if note := e.noted(e.Machine.DeletionTimestamp.Time); note != nil {
		noted = note.Annotations[v1alpha1.EventAnnotationStep]
	}
	switch {
	case e.didFail() && noted != "":
		return noted
	case e.Target.Problem != "" && e.didFail():
		return v1alpha1.StepDrain
	case e.Target.Problem != "" || e.nodeLeaves():
		return v1alpha1.StepDeleteNode
	case e.drained() || noted == v1alpha1.StepDeleteInstance || noted == v1alpha1.StepDeleteNode:
		return e.stepAfter(true)
	}
	if step := e.stepOfDrain(); step != "" {
		return step
	}
	return e.stepAfter(false)
}

// nodeLeaves reports whether the node is being deleted, and not held by our finalizer.
func (e *explainer) nodeLeaves() bool {
	n := e.Target.Node
	return n != nil && !n.DeletionTimestamp.IsZero() && !slices.Contains(n.Finalizers, v1alpha1.FinalizerNode)
}

// stepOfDrain is the step that what is left on the node belongs to; empty if nothing is.
func (e *explainer) stepOfDrain() string {
	switch {
	case slices.ContainsFunc(e.Target.Pods, func(pod corev1.Pod) bool { return drain.MustLeave(&pod) }):
		return v1alpha1.StepDrain
	case len(e.Target.Attachments) == 0:
		return ""
	case e.force() != drain.NotForced:
		return v1alpha1.StepDeleteAttachments
	default:
		return v1alpha1.StepDrain
	}
}

// stepAfter is the step of a deletion that has nothing to drain.
func (e *explainer) stepAfter(drained bool) string {
	n := e.Target.Node
	if e.Machine.Spec.ProviderID == "" || n != nil && !n.Spec.Unschedulable && !drained { // it is cordoned first
		return v1alpha1.StepIdentify
	}
	return v1alpha1.StepDeleteInstance
}

// drained reports whether the manager has said that the drain is over.
func (e *explainer) drained() bool {
	event := e.Facts.Events.Newest("Machine", func(event *corev1.Event) bool {
		return e.own(event) && event.Reason == "Drained" && !report.Time(event).Before(e.Machine.DeletionTimestamp.Time)
	})
	return event != nil
}

// force is why the drain is forced now, if it is.
func (e *explainer) force() drain.Force {
	requested, _ := strconv.ParseBool(e.Machine.Labels[v1alpha1.LabelKeyForceDeletion])
	return drain.ForceFor(requested, e.conditions(), e.now)
}

// conditions are those of the node, or what was copied of them.
func (e *explainer) conditions() []corev1.NodeCondition {
	if e.Target.Node != nil {
		return e.Target.Node.Status.Conditions
	}
	return e.Machine.Status.Conditions
}

// draining explains why the node is not empty yet, and when the drain goes on without regard to
// what holds it up.
func (e *explainer) draining() {
	switch {
	case e.Target.Problem != "":
		e.targetAway()
	default:
		if e.Target.Node != nil {
			e.nodeConditions()
		}
		if !e.pods() {
			e.attachments()
		}
	}
	e.Why(managerSays, "", e.reported(), "{text}", e.says())
	if force := e.force(); force != drain.NotForced {
		e.Next(time.Time{}, forced, "{why}", string(force))
		return
	}
	if due := drain.ForceDue(e.conditions(), e.now); due > 0 {
		e.Next(e.now.Add(due), forcedUnless)
	}
	t := e.drainTimeout()
	e.Next(t.Ends(e.Since), drainTimesOut, "{timeout}", describe(t, "drain"))
	e.Advise(forceDrain, "{label}", v1alpha1.LabelKeyForceDeletion)
}

// deletingInstance explains why the VM is still there.
func (e *explainer) deletingInstance() {
	const soon = time.Minute // the driver is asked again by then
	f, isFailure := e.failure()
	switch missing := e.missing(); {
	case isFailure && missing == "":
		e.notDeleted(f)
	case missing != "" && e.Machine.Spec.ProviderID != "":
		e.Why(undeletable, "", e.reported(), "{text}", missing)
	case e.failedFor(v1alpha1.CauseDriverSilent):
		e.Why(driverSilent, "", e.reported(), "{text}", e.says())
	case e.didFail():
		e.Why(other, "", e.reported(), "{text}", e.says())
	case e.now.Sub(e.reported()) > soon:
		e.Why(instanceRemains, "", e.reported())
		e.Next(time.Time{}, askedAgain)
	default:
		e.Why(instanceDeleted, "", e.reported())
	}
	if vm := e.VM; vm != nil {
		e.virtualMachine()
		if !vm.DeletionTimestamp.IsZero() {
			object := "VirtualMachine " + vm.Namespace + "/" + vm.Name
			e.Held(vm.Finalizers, object, object, vm)
		}
	}
}

// notDeleted says why the driver does not delete the VM, and how the deletion can end if nothing
// shows that there ever was a VM.
func (e *explainer) notDeleted(f failure) {
	e.driverFailed(f)
	if e.Machine.Spec.ProviderID != "" || e.Target.Node != nil {
		return
	}
	switch f.code {
	case codes.InvalidArgument, codes.OutOfRange, codes.PermissionDenied, codes.FailedPrecondition, codes.Unauthenticated, codes.Unimplemented:
		e.Advise(fixClass)
		e.Advise(noInstance)
	}
}

// deletingNode explains why the Node object is still there.
func (e *explainer) deletingNode() {
	switch n := e.Target.Node; {
	case e.Target.Problem != "":
		e.targetAway()
		e.Next(time.Time{}, nodeGoesLater)
	case n != nil && !n.DeletionTimestamp.IsZero():
		e.Held(n.Finalizers, "Node "+n.Name, "Node "+n.Name, n)
	default:
		e.Why(other, "", e.reported(), "{text}", e.says())
	}
}
