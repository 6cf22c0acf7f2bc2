package virtualmachine

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// problem is why a VM has no hypervisor, for people and programs.
type problem struct {
	// reason is the reason of a condition.
	reason string
	// message is a sentence that names the field, or the object, to change.
	message string
}

// Reasons of the condition Ready while there is no hypervisor to blame.
const (
	reasonUnsupported     = "Unsupported"
	reasonInvalid         = "InvalidSpec"
	reasonAddress         = "AddressUnavailable"
	reasonUserDataMissing = "UserDataMissing"
	reasonClaimTaken      = "VolumeClaimTaken"
	reasonVolumeLost      = "VolumeLost"
	reasonVolumePending   = "VolumePending"
	reasonFailed          = "ReconcileError"
)

func problemf(reason, format string, args ...any) *problem {
	return &problem{reason: reason, message: fmt.Sprintf(format, args...)}
}

// unsupported is what a spec asks for that cannot be had, or nil.
func unsupported(vm *v1alpha1.VirtualMachine) *problem {
	spec := &vm.Spec
	template := spec.VolumeClaimTemplate
	switch {
	case len(vm.Name) > validation.LabelValueMaxLength:
		return problemf(reasonInvalid, "metadata.name: %d characters at most, as it becomes the value of a label", validation.LabelValueMaxLength)
	case spec.LeaseMode == v1alpha1.LeaseFullLeases:
		return problemf(reasonUnsupported, "spec.leaseMode: FullLeases is not supported yet; use StorageLocking")
	case template != nil && template.Spec.VolumeMode != nil && *template.Spec.VolumeMode == corev1.PersistentVolumeBlock:
		return problemf(reasonUnsupported, "spec.volumeClaimTemplate.spec.volumeMode: Block is not supported yet; use Filesystem")
	case template != nil && storageOf(template).Sign() <= 0:
		return problemf(reasonInvalid, "spec.volumeClaimTemplate.spec.resources.requests.storage: must say the size of the disk")
	case guestMemory(spec) <= 0:
		return problemf(reasonInvalid, "spec.resources.limits.memory: must be more than %s, which the hypervisor itself needs", overhead.String())
	}
	return nil
}

func storageOf(template *v1alpha1.VolumeClaimTemplate) *resource.Quantity {
	return template.Spec.Resources.Requests.Storage()
}
