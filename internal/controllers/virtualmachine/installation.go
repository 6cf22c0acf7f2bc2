package virtualmachine

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// installation names a VM controller and those that may lead instead of it. Empty if it marks no VM, and reconciles
// those of others, too.
type installation string

// other returns the controller that reconciles a VM, if it is not this one.
func (i installation) other(vm *v1alpha1.VirtualMachine) string {
	if marked := vm.Annotations[v1alpha1.AnnotationController]; i != "" && marked != string(i) {
		return marked
	}
	return ""
}

// mark names this controller in the annotation of a VM that no controller reconciles yet.
func (i installation) mark(vm *v1alpha1.VirtualMachine) {
	if i != "" && vm.Annotations[v1alpha1.AnnotationController] == "" {
		metav1.SetMetaDataAnnotation(&vm.ObjectMeta, v1alpha1.AnnotationController, string(i))
	}
}

// eventOtherController is the reason of the event of a controller that leaves a VM to another one.
const eventOtherController = "OtherController"

// leaveAlone sends one event that another controller reconciles a VM, and writes nothing. Leases of a hypervisor that
// this controller has started stay open, so that the guest keeps running when its VM is handed over.
func (c *Controller) leaveAlone(vm *v1alpha1.VirtualMachine, other string, remembered *memory) {
	c.addresses.allocator.Forget(client.ObjectKeyFromObject(vm))
	if remembered.events.News(eventOtherController, string(vm.UID)+" "+other) {
		c.cluster.events.Eventf(vm, corev1.EventTypeWarning, eventOtherController,
			"VM controller %s leaves this to VM controller %s, which the annotation %s names", c.cluster.installation, other, v1alpha1.AnnotationController)
	}
}
