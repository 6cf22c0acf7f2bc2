package virtualmachine

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
)

// cause is why a VM has no hypervisor.
type cause struct {
	// reason is the reason of the condition Ready.
	reason string
	// message names the field, or the object, to change.
	message string
}

// Reasons of the condition Ready while there is no hypervisor.
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

func causef(reason, format string, args ...any) *cause {
	return &cause{reason: reason, message: fmt.Sprintf(format, args...)}
}

// invalid returns what is wrong with a spec; nil if nothing is.
func invalid(vm *v1alpha1.VirtualMachine) *cause {
	spec := &vm.Spec
	template := spec.VolumeClaimTemplate
	switch {
	case len(vm.Name) > validation.LabelValueMaxLength:
		return causef(reasonInvalid, "metadata.name: %d characters at most, as it becomes the value of a label", validation.LabelValueMaxLength)
	case spec.LeaseMode == v1alpha1.LeaseFullLeases:
		return causef(reasonUnsupported, "spec.leaseMode: FullLeases is not supported yet; use StorageLocking")
	case template != nil && template.Spec.VolumeMode != nil && *template.Spec.VolumeMode == corev1.PersistentVolumeBlock:
		return causef(reasonUnsupported, "spec.volumeClaimTemplate.spec.volumeMode: Block is not supported yet; use Filesystem")
	case template != nil && template.Spec.Resources.Requests.Storage().Sign() <= 0:
		return causef(reasonInvalid, "spec.volumeClaimTemplate.spec.resources.requests.storage: must say the size of the disk")
	case podspec.GuestMemory(spec) <= 0:
		return causef(reasonInvalid, "spec.resources.limits.memory: must be more than %s, which the hypervisor itself needs", podspec.Overhead.String())
	}
	return nil
}
