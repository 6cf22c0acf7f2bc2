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

// Group is the group of all hosts, which only their certificates name. The roles and policies in
// config/local and config/policy refer to it.
const Group = "millwright:hosts"

// errForeign means that a Pod was not made for a virtual machine.
var errForeign = errors.New("a host runs only the Pods of virtual machines")

// admitOwner returns an error unless the VM controller made the Pod for a VirtualMachine that
// exists. That it made every Pod with such an owner is enforced by the policy
// millwright-hypervisor-pods. Errors: errForeign, or a failure to read the VirtualMachine.
func (h *host) admitOwner(ctx context.Context, pod *corev1.Pod) error {
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return fmt.Errorf("%w, and no mirror Pods", errForeign)
	}
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil || owner.Kind != vmv1alpha1.VirtualMachineKind {
		return fmt.Errorf("%w, and no %s controls this one", errForeign, vmv1alpha1.VirtualMachineKind)
	}
	if version, err := schema.ParseGroupVersion(owner.APIVersion); err != nil || version.Group != vmv1alpha1.GroupName {
		return fmt.Errorf("%w, and no %s of %s controls this one", errForeign, vmv1alpha1.VirtualMachineKind, vmv1alpha1.GroupName)
	}
	vm, err := h.vms.Namespace(pod.Namespace).Get(ctx, owner.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && vm.UID != owner.UID:
		return fmt.Errorf("%w, and %s, which controls this one, does not exist", errForeign, owner.Name)
	case err != nil:
		return fmt.Errorf("reading virtual machine %s/%s: %w", pod.Namespace, owner.Name, err)
	}
	return nil
}
