package virtualmachine

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/authority"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/vm/lease"
)

// invalid returns what is wrong with a spec, or nil if it is valid. The settings are those of the next hypervisor.
func invalid(vm *v1alpha1.VirtualMachine, s podspec.Settings) *cause {
	spec := &vm.Spec
	template := spec.VolumeClaimTemplate
	switch {
	case podspec.Refusal(vm, s) != "":
		return causef(reasonInvalid, "%s", podspec.Refusal(vm, s))
	case len(vm.Name) > validation.LabelValueMaxLength:
		return causef(reasonInvalid, "metadata.name: must be no more than %d characters because it is used as a label value", validation.LabelValueMaxLength)
	case podspec.UnlockedDevices(spec) != "":
		return causef(reasonUnsupported, "%s: block devices with access mode ReadWriteMany have no locks between hosts; use leaseMode FullLeases, or access mode ReadWriteOnce",
			podspec.UnlockedDevices(spec))
	case spec.LeaseMode == v1alpha1.LeaseFullLeases && lease.Check(authority.DurationOf(vm)) != nil:
		return causef(reasonInvalid, "spec.leaseDurationSeconds: %v", lease.Check(authority.DurationOf(vm)))
	case podspec.InvalidSize(template, "spec.volumeClaimTemplate") != "":
		return causef(reasonInvalid, "%s", podspec.InvalidSize(template, "spec.volumeClaimTemplate"))
	case podspec.InvalidDataDisks(spec) != "":
		return causef(reasonInvalid, "%s", podspec.InvalidDataDisks(spec))
	case podspec.InvalidPlacement(spec) != "":
		return causef(reasonInvalid, "%s", podspec.InvalidPlacement(spec))
	case podspec.GuestMemory(spec, s) <= 0:
		return causef(reasonInvalid, "spec.resources.limits.memory: must be more than the %s that the hypervisor itself needs", resource.NewQuantity(s.Overhead(spec), resource.BinarySI))
	case fillsLimit(spec):
		return causef(reasonInvalid, "spec.memory: must be less than spec.resources.limits.memory; leave %s for the hypervisor itself", resource.NewQuantity(s.Overhead(spec), resource.BinarySI))
	}
	return nil
}

// fillsLimit reports whether the guest's memory leaves nothing of the Pod's memory limit for the hypervisor. The
// kernel would kill such a hypervisor as soon as the guest uses its memory.
func fillsLimit(spec *v1alpha1.VirtualMachineSpec) bool {
	limit, found := spec.Resources.Limits[corev1.ResourceMemory]
	return found && spec.Memory != nil && spec.Memory.Cmp(limit) >= 0
}
