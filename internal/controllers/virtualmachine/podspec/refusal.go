package podspec

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// AuthoritySecret is the name of the Secret with the VM controller's certificate authority.
const AuthoritySecret = "millwright-vm-authority"

// RefusedError reports that a VM may not have a Pod, because its guest or its hypervisor could use what belongs to
// the cluster's operator. Every function of this package that builds a Pod returns it.
type RefusedError struct {
	// Message is for users and names the field to change.
	Message string
}

// Error implements error.
func (e *RefusedError) Error() string { return e.Message }

// Refusal returns why a VM may not have a Pod, or "" if it may have one.
func Refusal(vm *v1alpha1.VirtualMachine, s Settings) string {
	from := vm.Spec.UserData
	switch {
	case s.Namespace != "" && vm.Namespace == s.Namespace:
		return fmt.Sprintf("metadata.namespace: %s is the namespace of the VM controller, whose Secrets guests must not read; create the virtual machine in another namespace", vm.Namespace)
	case from != nil && from.SecretRef.Name == AuthoritySecret:
		return fmt.Sprintf("spec.userData.secretRef: secret %s belongs to the VM controller; use another secret", from.SecretRef.Name)
	case !s.allows(vm.Spec.HypervisorImage):
		return fmt.Sprintf("spec.hypervisorImage: image %s is not permitted; remove the field, or ask an operator to add the image to --hypervisor-images of the VM controller", vm.Spec.HypervisorImage)
	}
	return cmp.Or(networkRefusal(vm, s), portRefusal(vm, s))
}

// networkRefusal names a network that a VM must not use. It returns "" if the VM may use all of its networks.
func networkRefusal(vm *v1alpha1.VirtualMachine, s Settings) string {
	for i := range vm.Spec.Networks {
		if name := attachmentOf(vm, &vm.Spec.Networks[i]).String(); !slices.Contains(s.Attachments, name) {
			return fmt.Sprintf("spec.networks[%d].multus.networkName: network %s is not permitted; create the virtual machine without it, or ask an operator to add it to --network-attachments of the VM controller", i, name)
		}
	}
	return ""
}

// allows reports whether a VM may set an image. The image is empty if the VM sets none.
func (s Settings) allows(image string) bool {
	return image == "" || image == s.Image || slices.Contains(s.Images, image)
}
