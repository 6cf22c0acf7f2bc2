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

// console names the command that shows the console; empty if there is none.
func (e *explainer) console() string {
	if e.VM == nil {
		return ""
	}
	return fmt.Sprintf(" (millwright vm console -n %s %s)", e.VM.Namespace, e.VM.Name)
}
