package explain

import (
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
)

func leaving(object metav1.Object) bool { return object.GetDeletionTimestamp() != nil }

func (e *explainer) deleting() {
	e.Since = e.begin
	e.replaced()
	switch finalizers := e.Machine.Finalizers; {
	case !slices.Contains(finalizers, v1alpha1.FinalizerMCM) && !slices.Contains(finalizers, v1alpha1.FinalizerLegacy):
		e.Held(finalizers, "", "the machine", e.Machine)
	case e.last.Type != v1alpha1.MachineOperationDelete:
		e.Why(notBegun, "", e.Since)
	case e.failedFor(v1alpha1.CauseInstanceShared):
		e.Why(instanceShared, "", e.reported, "{text}", e.says)
	default:
		e.waiting()
	}
	e.Conclude(report.Deleting, "is being deleted", e.Report.Why)
	e.WhyDeleted()
}

// failedFor reports whether the last operation failed for a cause.
func (e *explainer) failedFor(cause string) bool {
	return e.didFail() && report.CauseOf(&e.note) == cause
}

func (e *explainer) waiting() {
	switch e.step() {
	case v1alpha1.StepDrain:
		e.draining()
	case v1alpha1.StepDeleteAttachments:
		e.attachments()
		e.Why(drainQuoted, "", e.reported, "{text}", e.says)
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
		e.Why(quoted, "", e.reported, "{text}", e.says)
	}
}

// step returns the step that the deletion waits in: that of the manager's event if the step fails,
// else what follows from what is left, in the order of the steps.
func (e *explainer) step() string {
	noted := e.note.Annotations[v1alpha1.EventAnnotationStep]
	drained := noted == v1alpha1.StepDeleteInstance || noted == v1alpha1.StepDeleteNode
	switch {
	case e.didFail() && noted != "":
		return noted
	case e.Target.Problem != "" && e.didFail():
		return v1alpha1.StepDrain
	case e.Target.Problem != "" || e.nodeLeaves():
		return v1alpha1.StepDeleteNode
	case !drained && e.mustDrain():
		return e.drainStep()
	case e.Identity.ProviderID == "" || !e.cordoned() && !drained:
		return v1alpha1.StepIdentify
	}
	return v1alpha1.StepDeleteInstance
}

// nodeLeaves reports whether the manager has given up the node, which is being deleted.
func (e *explainer) nodeLeaves() bool {
	n := e.Target.Node
	return n != nil && leaving(n) && !slices.Contains(n.Finalizers, v1alpha1.FinalizerNode)
}

// cordoned reports whether there is no node that would have to be cordoned, as comes before the drain.
func (e *explainer) cordoned() bool { return e.Target.Node == nil || e.Target.Node.Spec.Unschedulable }

func (e *explainer) podsLeft() bool {
	return slices.ContainsFunc(e.Target.Pods, func(pod corev1.Pod) bool { return drain.MustLeave(&pod) })
}

func (e *explainer) mustDrain() bool { return e.podsLeft() || len(e.Target.Attachments) > 0 }

func (e *explainer) drainStep() string {
	if !e.podsLeft() && e.force() != drain.NotForced {
		return v1alpha1.StepDeleteAttachments
	}
	return v1alpha1.StepDrain
}

func (e *explainer) force() drain.Force {
	requested, _ := strconv.ParseBool(e.Machine.Labels[v1alpha1.LabelKeyForceDeletion])
	return drain.ForceFor(requested, e.conditions(), e.now)
}

// conditions are those of the node, or those that the manager copied.
func (e *explainer) conditions() []corev1.NodeCondition {
	if e.Target.Node != nil {
		return e.Target.Node.Status.Conditions
	}
	return e.Machine.Status.Conditions
}

func (e *explainer) deletingInstance() {
	// Our manager notes that the provider still has the VM. MCM notes nothing, and asks within a minute.
	ours := e.note.Annotations[v1alpha1.EventAnnotationStep] != ""
	remains := report.CauseOf(&e.note) == v1alpha1.CauseInstanceExists || !ours && e.now.Sub(e.reported) > time.Minute
	f, isFailure := e.failure()
	switch missing := e.missing(); {
	case isFailure && missing == "":
		e.notDeleted(f)
	case missing != "" && e.Identity.ProviderID != "":
		e.Why(undeletable, "", e.reported, "{text}", missing)
	case e.failedFor(v1alpha1.CauseDriverSilent):
		e.Why(driverSilent, "", e.reported, "{text}", e.says)
	case e.didFail():
		e.Say(report.Other, "", e.reported, e.says)
	case remains:
		e.Why(instanceRemains, "", e.reported)
		e.Next(time.Time{}, askedAgain)
	default:
		e.Why(instanceDeleted, "", e.reported)
	}
	e.virtualMachine()
	if vm := e.VM; vm != nil && leaving(vm) {
		object := "VirtualMachine " + vm.Namespace + "/" + vm.Name
		e.Held(vm.Finalizers, object, object, vm)
	}
}

// notDeleted says why the driver does not delete the VM, and how the deletion can end if there may
// never have been a VM.
func (e *explainer) notDeleted(f failure) {
	e.driverFailed(f)
	if e.Identity.ProviderID != "" || e.Target.Node != nil {
		return
	}
	switch f.code {
	case codes.InvalidArgument, codes.OutOfRange, codes.PermissionDenied, codes.FailedPrecondition, codes.Unauthenticated, codes.Unimplemented:
		e.Advise(fixClass)
		e.Advise(noInstance)
	}
}

func (e *explainer) deletingNode() {
	switch n := e.Target.Node; {
	case e.Target.Problem != "":
		e.targetAway()
		e.Next(time.Time{}, nodeGoesLater)
	case n != nil && leaving(n):
		e.Held(n.Finalizers, "Node "+n.Name, "Node "+n.Name, n)
	default:
		e.Say(report.Other, "", e.reported, e.says)
	}
}
