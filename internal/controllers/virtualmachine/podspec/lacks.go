package podspec

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// Lacks returns in what the guest of a Pod differs from its VM's spec, for users: CPUs, memory and disks. report is the
// last one of its hypervisor, which may have enlarged disks since its start; the settings are those of the next one.
func Lacks(vm *v1alpha1.VirtualMachine, pod *corev1.Pod, report *vmpb.ReportStateRequest, s Settings) ([]string, error) {
	if !Outdated(vm, pod) {
		return nil, nil
	}
	has, err := specOf(pod)
	if err != nil {
		return nil, err
	}
	var lacks []string
	differs := func(what string, is, wanted any) {
		lacks = append(lacks, fmt.Sprintf("%s: %v instead of %v", what, wanted, is))
	}
	if is, wanted := int64(has.GetResources().GetCpus()), guestCPUs(&vm.Spec); is != wanted {
		differs("CPUs", is, wanted)
	}
	if is, wanted := int64(has.GetResources().GetMemoryBytes()), GuestMemory(&vm.Spec, s); is != wanted {
		differs("memory", size(is), size(wanted))
	}
	for _, disk := range wantedDisks(vm) {
		switch is, found := diskSize(has, report, disk.Name); {
		case !found:
			lacks = append(lacks, "data disk "+disk.Name)
		case is < disk.Bytes:
			differs(DiskName(disk.Name), size(is), size(disk.Bytes))
		}
	}
	for _, disk := range has.GetDataDisks() {
		if !wantsDataDisk(&vm.Spec, disk.GetName()) {
			lacks = append(lacks, "no data disk "+disk.GetName())
		}
	}
	return lacks, nil
}

// GrowingDisks returns the disks of the guest of a Pod that its hypervisor may enlarge: those that have become larger in
// the spec since its start.
func GrowingDisks(vm *v1alpha1.VirtualMachine, pod *corev1.Pod) ([]v1alpha1.DiskSize, error) {
	has, err := specOf(pod)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(wantedDisks(vm), func(disk v1alpha1.DiskSize) bool {
		is, found := diskSize(has, nil, disk.Name)
		return !found || is >= disk.Bytes
	}), nil
}

// DiskName names a disk for users.
func DiskName(name string) string {
	if name == "" {
		return "disk"
	}
	return "data disk " + name
}

// wantedDisks returns the disks of a spec that say their size.
func wantedDisks(vm *v1alpha1.VirtualMachine) []v1alpha1.DiskSize {
	var wanted []v1alpha1.DiskSize
	if template := vm.Spec.VolumeClaimTemplate; template != nil {
		wanted = append(wanted, v1alpha1.DiskSize{Bytes: int64(requested(template))})
	}
	for i := range vm.Spec.DataDisks {
		disk := &vm.Spec.DataDisks[i]
		wanted = append(wanted, v1alpha1.DiskSize{Name: disk.Name, Bytes: int64(requested(&disk.VolumeClaimTemplate))})
	}
	return wanted
}

// diskSize returns the size of a disk, as its hypervisor reported it last, or as it had it at its start at least.
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
