package hostrunner

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// Group is the group of all hosts, which only their certificates have. The roles and policies in config/local
// and config/policy refer to it.
const Group = "millwright:hosts"

// errForeign means that a Pod was not created for a virtual machine.
var errForeign = errors.New("only Pods of virtual machines are supported")

// admitOwner returns an error unless the VM controller created the Pod for an existing VirtualMachine. The
// policy millwright-hypervisor-pods ensures that only the VM controller creates Pods with such an owner. It
// returns errForeign, or the error of reading the VirtualMachine.
func (h *host) admitOwner(ctx context.Context, pod *corev1.Pod) error {
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return fmt.Errorf("%w, not mirror Pods", errForeign)
	}
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil || owner.Kind != vmv1alpha1.VirtualMachineKind {
		return fmt.Errorf("%w, and this Pod has no controller of kind %s", errForeign, vmv1alpha1.VirtualMachineKind)
	}
	if version, err := schema.ParseGroupVersion(owner.APIVersion); err != nil || version.Group != vmv1alpha1.GroupName {
		return fmt.Errorf("%w, and this Pod has no controller of kind %s in group %s", errForeign, vmv1alpha1.VirtualMachineKind, vmv1alpha1.GroupName)
	}
	vm, err := h.vms.Namespace(pod.Namespace).Get(ctx, owner.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && vm.UID != owner.UID:
		return fmt.Errorf("%w, and this Pod's controller %s does not exist", errForeign, owner.Name)
	case err != nil:
		return fmt.Errorf("reading virtual machine %s/%s: %w", pod.Namespace, owner.Name, err)
	}
	return nil
}
