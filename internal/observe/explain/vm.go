package explain

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
	switch {
	case ready == nil:
		e.why(VMNotReady, object, vm.CreationTimestamp.Time, "nothing was done for it yet: is its controller running?")
		return
	case ready.Status == metav1.ConditionTrue:
		return
	}
	where := ""
	if vm.Status.NodeName != "" {
		where = " on host " + vm.Status.NodeName
	}
	e.why(VMNotReady, object, ready.LastTransitionTime.Time, "its VM%s is not ready (%s): %s", where, ready.Reason, ready.Message)
}

// Reasons for which the image of a VM is not there, as hypervisors have them.
const (
	imageUnavailable = "ImageUnavailable"
	imageRejected    = "ImageRejected"
)

// lookAt says where to look for why a VM has not joined: at its console, which may tell what
// goes wrong in it, or at what keeps it from running.
func (e *explainer) lookAt(because string) {
	vm, class := e.VM, e.className()
	if vm == nil || vm.Status.Phase != vmv1alpha1.PhaseCreating {
		e.advise("Look at the VM's console%s: %s", e.console(), because)
		return
	}
	reason := ""
	if ready := meta.FindStatusCondition(vm.Status.Conditions, vmv1alpha1.ConditionReady); ready != nil {
		reason = ready.Reason
	}
	switch reason {
	case imageUnavailable, imageRejected:
		e.advise("Correct the image that MachineClass %s names, or what its server answers: the VM has never run, so its console tells nothing", class)
	case vmv1alpha1.ReasonUnschedulable:
		e.advise("Free room on a host, or add one: the VM has not run yet, so its console tells nothing")
	default:
		e.advise("If it takes too long, look at the VM: kubectl -n %s describe %s %s. It has not run yet, so its console tells nothing", vm.Namespace, vmResource, vm.Name)
	}
}

// console names the command that shows the console; empty if there is none.
func (e *explainer) console() string {
	if e.VM == nil {
		return ""
	}
	return fmt.Sprintf(" (millwright vm console -n %s %s)", e.VM.Namespace, e.VM.Name)
}
