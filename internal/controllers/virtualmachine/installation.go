package virtualmachine

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// installation identifies a VM controller and its standby replicas. If empty, the controller marks no VMs and also
// reconciles the VMs of other controllers.
type installation string

// otherController returns the controller that reconciles a VM, or "" if this controller does.
func (i installation) otherController(vm *v1alpha1.VirtualMachine) string {
	if marked := vm.Annotations[v1alpha1.AnnotationController]; i != "" && marked != string(i) {
		return marked
	}
	return ""
}

// mark sets the annotation with this controller on a VM that has none.
func (i installation) mark(vm *v1alpha1.VirtualMachine) {
	if i != "" && vm.Annotations[v1alpha1.AnnotationController] == "" {
		metav1.SetMetaDataAnnotation(&vm.ObjectMeta, v1alpha1.AnnotationController, string(i))
	}
}

// eventOtherController is the reason of the event for a VM that another controller reconciles.
const eventOtherController = "OtherController"

// leaveAlone sends one event that another controller reconciles the VM, and writes nothing. Leases of hypervisors
// that this controller has started stay open, so that the guest keeps running when its VM is handed over, with its
// addresses.
func (c *Controller) leaveAlone(vm *v1alpha1.VirtualMachine, other string, remembered *memory) {
	c.addresses.forget(client.ObjectKeyFromObject(vm)) // those of a running guest stay taken
	if remembered.events.News(eventOtherController, string(vm.UID)+" "+other) {
		c.cluster.events.Eventf(vm, corev1.EventTypeWarning, eventOtherController,
			"VM controller %s ignores this virtual machine because annotation %[3]s assigns it to VM controller %[2]s", c.cluster.installation, other, v1alpha1.AnnotationController)
	}
}
