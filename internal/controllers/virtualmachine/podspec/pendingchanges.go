package podspec

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// PendingChanges returns the differences between the guest in a Pod and the VM's spec, for users: CPUs, memory and
// disks. report is the last report of the hypervisor, which may have enlarged disks since its start. The settings are
// those of the next hypervisor.
func PendingChanges(vm *v1alpha1.VirtualMachine, pod *corev1.Pod, report *vmpb.ReportStateRequest, s Settings) ([]string, error) {
	if !Outdated(vm, pod) {
		return nil, nil
	}
	has, err := specOf(pod)
	if err != nil {
		return nil, err
	}
	var changes []string
	differs := func(what string, has, desired any) {
		changes = append(changes, fmt.Sprintf("%s: %v instead of %v", what, desired, has))
	}
	if cpus, desired := int64(has.GetResources().GetCpus()), guestCPUs(&vm.Spec); cpus != desired {
		differs("CPUs", cpus, desired)
	}
	if memory, desired := int64(has.GetResources().GetMemoryBytes()), GuestMemory(&vm.Spec, s); memory != desired {
		differs("memory", size(memory), size(desired))
	}
	for _, disk := range specDisks(vm) {
		switch is, found := diskSize(has, report, disk.Name); {
		case !found:
			changes = append(changes, "new data disk "+disk.Name)
		case is < disk.Bytes:
			differs(DiskName(disk.Name), size(is), size(disk.Bytes))
		}
	}
	for _, disk := range has.GetDataDisks() {
		if !hasDataDisk(&vm.Spec, disk.GetName()) {
			changes = append(changes, "removal of data disk "+disk.GetName())
		}
	}
	return changes, nil
}

// GrowingDisks returns the disks of the guest in a Pod that its hypervisor may enlarge: those whose size in the spec
// has increased since the hypervisor started.
func GrowingDisks(vm *v1alpha1.VirtualMachine, pod *corev1.Pod) ([]v1alpha1.DiskSize, error) {
	has, err := specOf(pod)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(specDisks(vm), func(disk v1alpha1.DiskSize) bool {
		is, found := diskSize(has, nil, disk.Name)
		return !found || is >= disk.Bytes
	}), nil
}

// DiskName returns the name of a disk in messages. The name is that of a data disk, or "" for the root disk.
func DiskName(name string) string {
	if name == "" {
		return "disk"
	}
	return "data disk " + name
}

// specDisks returns the disks of a spec that have a size.
func specDisks(vm *v1alpha1.VirtualMachine) []v1alpha1.DiskSize {
	var disks []v1alpha1.DiskSize
	if template := vm.Spec.VolumeClaimTemplate; template != nil {
		disks = append(disks, v1alpha1.DiskSize{Bytes: int64(requested(template))})
	}
	for i := range vm.Spec.DataDisks {
		disk := &vm.Spec.DataDisks[i]
		disks = append(disks, v1alpha1.DiskSize{Name: disk.Name, Bytes: int64(requested(&disk.VolumeClaimTemplate))})
	}
	return disks
}

// diskSize returns the size of a disk: the size at the start of the hypervisor, or a larger one that the hypervisor
// has reported. report may be nil.
func diskSize(has *vmpb.VMSpec, report *vmpb.ReportStateRequest, name string) (bytes int64, found bool) {
	at := slices.IndexFunc(has.GetDataDisks(), func(disk *vmpb.DataDisk) bool { return disk.GetName() == name })
	switch {
	case name == "":
		bytes = int64(has.GetRootDiskBytes())
	case at < 0:
		return 0, false
	default:
		bytes = int64(has.GetDataDisks()[at].GetBytes())
	}
	for _, disk := range report.GetDisks() {
		if disk.GetName() == name {
			bytes = max(bytes, int64(disk.GetBytes()))
		}
	}
	return bytes, true
}

func size(bytes int64) string { return resource.NewQuantity(bytes, resource.BinarySI).String() }
