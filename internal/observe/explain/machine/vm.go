package machine

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// virtualMachine says what is wrong with the Machine's VirtualMachine, if it has one.
func (e *explainer) virtualMachine() {
	vm := e.VM
	if vm == nil {
		return
	}
	object := "VirtualMachine " + vm.Namespace + "/" + vm.Name
	ready := meta.FindStatusCondition(vm.Status.Conditions, vmv1alpha1.ConditionReady)
	if ready == nil {
		e.Why(vmUntouched, object, vm.CreationTimestamp.Time)
		return
	}
	if ready.Status == metav1.ConditionTrue {
		return
	}
	where := ""
	if vm.Status.NodeName != "" {
		where = " on host " + vm.Status.NodeName
	}
	e.Why(vmNotReady, object, ready.LastTransitionTime.Time, "{where}", where, "{reason}", ready.Reason, "{text}", ready.Message)
}

// Reasons for which the image of a VM is not there, as hypervisors have them.
const (
	imageUnavailable = "ImageUnavailable"
	imageRejected    = "ImageRejected"
)

// lookAt advises where to look for why a VM has not joined: at its console, which may tell what
// goes wrong in it, or at what keeps it from running.
func (e *explainer) lookAt(because string) {
	vm := e.VM
	if vm == nil || vm.Status.Phase != vmv1alpha1.PhaseCreating {
		e.Advise(lookAtReason, "{reason}", because)
		return
	}
	reason := ""
	if ready := meta.FindStatusCondition(vm.Status.Conditions, vmv1alpha1.ConditionReady); ready != nil {
		reason = ready.Reason
	}
	switch reason {
	case imageUnavailable, imageRejected:
		e.Advise(fixImage)
	case vmv1alpha1.ReasonUnschedulable:
		e.Advise(freeHost)
	default:
		e.Advise(lookAtVM, "{vm namespace}", vm.Namespace, "{vm}", vm.Name)
	}
}

// console names the command that shows the console; empty if there is none.
func (e *explainer) console() string {
	if e.VM == nil {
		return ""
	}
	return fmt.Sprintf(" (millwright vm console -n %s %s)", e.VM.Namespace, e.VM.Name)
}
