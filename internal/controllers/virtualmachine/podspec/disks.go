package podspec

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// MaxDiskBytes is the size of the largest disk that hypervisors accept.
const MaxDiskBytes = 1 << 52

// DataClaimName returns the name of the claim of a data disk: the one that the status has, or that of a new one.
func DataClaimName(vm *v1alpha1.VirtualMachine, disk string) string {
	if known := DataDiskStatus(&vm.Status, disk); known != nil {
		return known.VolumeClaimName
	}
	return dataClaimName(vm.Name, disk)
}

func dataClaimName(vm, disk string) string { return vm + "-" + disk }

// DataDiskStatus returns what a status has of a data disk; nil if it has nothing.
func DataDiskStatus(status *v1alpha1.VirtualMachineStatus, disk string) *v1alpha1.DataDiskStatus {
	for i := range status.DataDisks {
		if status.DataDisks[i].Name == disk {
			return &status.DataDisks[i]
		}
	}
	return nil
}

// IsDataClaim reports whether a claim of a VM is that of a data disk. It does not rest on the label alone, which
// users can remove: a claim that is no data disk's is deleted when the VM has left it.
func IsDataClaim(vm *v1alpha1.VirtualMachine, claim *corev1.PersistentVolumeClaim) bool {
	return claim.Labels[v1alpha1.LabelDataDisk] != "" ||
		IsTargetDataClaim(&vm.Status, claim.Name) ||
		slices.ContainsFunc(vm.Status.DataDisks, func(disk v1alpha1.DataDiskStatus) bool { return disk.VolumeClaimName == claim.Name }) ||
		slices.ContainsFunc(vm.Spec.DataDisks, func(disk v1alpha1.DataDisk) bool { return DataClaimName(vm, disk.Name) == claim.Name })
}

// IsClaimOf reports whether a claim of a VM may be that of a disk; the empty name is the disk from which the VM starts.
func IsClaimOf(vm *v1alpha1.VirtualMachine, claim *corev1.PersistentVolumeClaim, disk string) bool {
	if disk == "" {
		return !IsDataClaim(vm, claim)
	}
	return claim.Labels[v1alpha1.LabelDataDisk] == disk || claim.Name == DataClaimName(vm, disk)
}

// DataClaims returns the data disks that a Pod has, with their claims.
func DataClaims(pod *corev1.Pod) []v1alpha1.DataDiskStatus {
	var disks []v1alpha1.DataDiskStatus
	for _, volume := range pod.Spec.Volumes {
		if disk, found := strings.CutPrefix(volume.Name, volumeDisk+"-"); found && volume.PersistentVolumeClaim != nil {
			disks = append(disks, v1alpha1.DataDiskStatus{Name: disk, VolumeClaimName: volume.PersistentVolumeClaim.ClaimName})
		}
	}
	return disks
}

// Claims returns the names of all claims that a Pod mounts.
func Claims(pod *corev1.Pod) []string {
	var names []string
	for _, volume := range pod.Spec.Volumes {
		if volume.PersistentVolumeClaim != nil {
			names = append(names, volume.PersistentVolumeClaim.ClaimName)
		}
	}
	return names
}

// NextDataDisks returns what the status has of data disks when the name of the next Pod is reserved, which has those
// of the spec. One that was prepared stays, also when the spec has it no more.
func NextDataDisks(vm *v1alpha1.VirtualMachine) []v1alpha1.DataDiskStatus {
	var next []v1alpha1.DataDiskStatus
	for _, disk := range vm.Spec.DataDisks {
		known := DataDiskStatus(&vm.Status, disk.Name)
		next = append(next, v1alpha1.DataDiskStatus{
			Name: disk.Name, VolumeClaimName: DataClaimName(vm, disk.Name), Prepared: known != nil && known.Prepared && !ReplacesDisk(vm),
		})
	}
	for _, disk := range vm.Status.DataDisks {
		if disk.Prepared && !wantsDataDisk(&vm.Spec, disk.Name) {
			next = append(next, disk)
		}
	}
	return next
}

// NewDataDisks reports whether KnowDataDisks changes the status of a VM.
func NewDataDisks(vm *v1alpha1.VirtualMachine, report *vmpb.ReportStateRequest) bool {
	return slices.ContainsFunc(report.GetDisks(), func(disk *vmpb.DiskSize) bool {
		known := DataDiskStatus(&vm.Status, disk.GetName())
		return known != nil && !known.Prepared || known == nil && wantsDataDisk(&vm.Spec, disk.GetName())
	})
}

// KnowDataDisks stores which data disks are complete, as their hypervisor has reported. If the status was lost, those of
// the spec are known again.
func KnowDataDisks(spec *v1alpha1.VirtualMachineSpec, status *v1alpha1.VirtualMachineStatus, report *vmpb.ReportStateRequest) {
	for _, disk := range report.GetDisks() {
		name := disk.GetName()
		if known := DataDiskStatus(status, name); known != nil {
			known.Prepared = true
		} else if wantsDataDisk(spec, name) {
			claim := dataClaimName(report.GetUs().GetVmName(), name)
			status.DataDisks = append(status.DataDisks, v1alpha1.DataDiskStatus{Name: name, VolumeClaimName: claim, Prepared: true})
		}
	}
}

func wantsDataDisk(spec *v1alpha1.VirtualMachineSpec, name string) bool {
	return slices.ContainsFunc(spec.DataDisks, func(disk v1alpha1.DataDisk) bool { return disk.Name == name })
}

// dataDisks returns the data disks of the next hypervisor: those of the spec for which a claim is reserved.
func dataDisks(vm *v1alpha1.VirtualMachine) []*vmpb.DataDisk {
	var disks []*vmpb.DataDisk
	for i := range vm.Spec.DataDisks {
		disk := &vm.Spec.DataDisks[i]
		known := DataDiskStatus(&vm.Status, disk.Name)
		if known == nil {
			continue
		}
		disks = append(disks, &vmpb.DataDisk{
			Name: disk.Name, Path: dataDiskPath(disk), Bytes: requested(&disk.VolumeClaimTemplate),
			Exists: known.Prepared, InitialImage: initialImage(disk.InitialImage),
		})
	}
	return disks
}

// dataDiskPath returns where the container has a data disk.
func dataDiskPath(disk *v1alpha1.DataDisk) string {
	if IsBlock(&disk.VolumeClaimTemplate) {
		return vmpb.DataDevicePath(disk.Name)
	}
	return vmpb.DataDiskPath(disk.Name)
}

// requested returns the size that a template requests, in bytes.
func requested(template *v1alpha1.VolumeClaimTemplate) uint64 {
	return uint64(max(0, template.Spec.Resources.Requests.Storage().Value()))
}

// Claim returns a claim of a VM's disk from a template. The disk is the name of a data disk; empty, it is the one from which
// the VM starts.
func Claim(vm *v1alpha1.VirtualMachine, disk string, template *v1alpha1.VolumeClaimTemplate, name string) *corev1.PersistentVolumeClaim {
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: vm.Namespace,
			Labels: map[string]string{}, Annotations: template.Metadata.Annotations,
			OwnerReferences: []metav1.OwnerReference{ownerReference(vm)},
		},
		Spec: *template.Spec.DeepCopy(),
	}
	maps.Copy(claim.Labels, template.Metadata.Labels)
	claim.Labels[v1alpha1.LabelVM] = vm.Name
	if claim.Labels[v1alpha1.LabelDataDisk] = disk; disk == "" {
		delete(claim.Labels, v1alpha1.LabelDataDisk)
	}
	if len(claim.Spec.AccessModes) == 0 {
		claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	}
	return claim
}

// InvalidDataDisks returns what is wrong with the data disks of a spec that the API server has admitted; empty if
// nothing is.
func InvalidDataDisks(spec *v1alpha1.VirtualMachineSpec) string {
	for i := range spec.DataDisks {
		disk := &spec.DataDisks[i]
		field := fmt.Sprintf("spec.dataDisks[%s].volumeClaimTemplate", disk.Name)
		if wrong := InvalidSize(&disk.VolumeClaimTemplate, field); wrong != "" {
			return wrong
		}
	}
	return ""
}

// InvalidSize returns what is wrong with the size in a template, which is the field; empty if nothing is. A nil template
// has none.
func InvalidSize(template *v1alpha1.VolumeClaimTemplate, field string) string {
	if template == nil {
		return ""
	}
	field += ".spec.resources.requests.storage: "
	switch size := template.Spec.Resources.Requests.Storage(); {
	case size.Sign() <= 0:
		return field + "must say the size of the disk"
	case size.CmpInt64(MaxDiskBytes) > 0:
		return field + size.String() + " is more than 4Pi"
	}
	return ""
}

// IsBlock reports whether a template, which may be nil, asks for a device.
func IsBlock(template *v1alpha1.VolumeClaimTemplate) bool {
	return template != nil && ModeOf(&template.Spec) == corev1.PersistentVolumeBlock
}

// OnDevices reports whether a disk of the hypervisor in a Pod is a block device; without a Pod, one of the next.
func OnDevices(vm *v1alpha1.VirtualMachine, pod *corev1.Pod) bool {
	if pod != nil {
		container := Hypervisor(pod)
		return container != nil && len(container.VolumeDevices) > 0
	}
	return IsBlock(vm.Spec.VolumeClaimTemplate) ||
		slices.ContainsFunc(vm.Spec.DataDisks, func(disk v1alpha1.DataDisk) bool { return IsBlock(&disk.VolumeClaimTemplate) })
}

// ModeOf returns whether a claim is for a file system or for a device.
func ModeOf(claim *corev1.PersistentVolumeClaimSpec) corev1.PersistentVolumeMode {
	return ptr.Deref(claim.VolumeMode, corev1.PersistentVolumeFilesystem)
}

// UnlockedDevices returns which disks of a spec are devices that several hosts may have at once, where no lock of one host
// keeps another one out, although the VM has nothing else that does; empty if none is.
func UnlockedDevices(spec *v1alpha1.VirtualMachineSpec) string {
	if spec.LeaseMode == v1alpha1.LeaseFullLeases {
		return ""
	}
	unlocked := func(template *v1alpha1.VolumeClaimTemplate) bool {
		return IsBlock(template) && slices.Contains(template.Spec.AccessModes, corev1.ReadWriteMany)
	}
	if unlocked(spec.VolumeClaimTemplate) {
		return "spec.volumeClaimTemplate"
	}
	for i := range spec.DataDisks {
		if unlocked(&spec.DataDisks[i].VolumeClaimTemplate) {
			return fmt.Sprintf("spec.dataDisks[%s].volumeClaimTemplate", spec.DataDisks[i].Name)
		}
	}
	return ""
}
