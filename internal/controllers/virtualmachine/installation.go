package virtualmachine

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// eventOtherController is the reason of the event of a controller that leaves a VM to another one.
const eventOtherController = "OtherController"

// otherController returns the controller that works for a VM, if it is not this one.
func (c *Controller) otherController(vm *v1alpha1.VirtualMachine) string {
	if marked := vm.Annotations[v1alpha1.AnnotationController]; c.Installation != "" && marked != c.Installation {
		return marked
	}
	return ""
}

// mark names this controller in the annotation of a VM that nobody works for.
func (c *Controller) mark(vm *v1alpha1.VirtualMachine) {
	if c.Installation != "" && vm.Annotations[v1alpha1.AnnotationController] == "" {
		metav1.SetMetaDataAnnotation(&vm.ObjectMeta, v1alpha1.AnnotationController, c.Installation)
	}
}

// leaveAlone says once that another controller works for a VM. The status is that one's to write. Leases of a
// hypervisor that this controller has started go on, so that a guest runs on when its VM is handed over.
func (c *Controller) leaveAlone(vm *v1alpha1.VirtualMachine, other string, remembered *memory) {
	c.addresses.Forget(client.ObjectKeyFromObject(vm))
	if remembered.events.News(eventOtherController, string(vm.UID)+" "+other) {
		c.Events.Eventf(vm, corev1.EventTypeWarning, eventOtherController,
			"VM controller %s leaves this to VM controller %s, which the annotation %s names", c.Installation, other, v1alpha1.AnnotationController)
	}
}
