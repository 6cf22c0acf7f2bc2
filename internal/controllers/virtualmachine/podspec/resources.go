package podspec

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

const (
	// defaultMemory is a guest's memory in bytes if the VM sets none.
	defaultMemory = 512 << 20
	// cpuShare is the CPU request for each virtual CPU, in thousandths of a CPU, if the
	// VM sets no resources. Most VMs idle, and share the CPUs in proportion.
	cpuShare = 100
)

// Overhead is the memory that the hypervisor process and QEMU need beside the guest's.
var Overhead = resource.MustParse("192Mi")

// guestCPUs returns the number of virtual CPUs.
func guestCPUs(spec *v1alpha1.VirtualMachineSpec) int64 {
	if spec.CPUs > 0 {
		return int64(spec.CPUs)
	}
	return max(1, spec.Resources.Limits.Cpu().Value()) // Value rounds up
}

// GuestMemory returns the guest's memory in bytes; 0 or less if the limits leave none.
func GuestMemory(spec *v1alpha1.VirtualMachineSpec) int64 {
	if spec.Memory != nil {
		return spec.Memory.Value()
	}
	if limit, found := spec.Resources.Limits[corev1.ResourceMemory]; found {
		return limit.Value() - Overhead.Value()
	}
	return defaultMemory
}

// podResources returns the resources of the spec. If there are none, the Pod requests
// the guest's memory with the overhead and a share of the CPUs, and has no limits.
func podResources(spec *v1alpha1.VirtualMachineSpec) corev1.ResourceRequirements {
	if len(spec.Resources.Requests)+len(spec.Resources.Limits)+len(spec.Resources.Claims) > 0 {
		return *spec.Resources.DeepCopy()
	}
	return corev1.ResourceRequirements{Requests: corev1.ResourceList{
		corev1.ResourceMemory: *resource.NewQuantity(GuestMemory(spec)+Overhead.Value(), resource.BinarySI),
		corev1.ResourceCPU:    *resource.NewMilliQuantity(cpuShare*guestCPUs(spec), resource.DecimalSI),
	}}
}
