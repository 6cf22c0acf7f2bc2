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

// MaxDiskBytes is the maximum disk size that hypervisors accept.
const MaxDiskBytes = 1 << 52

// DataClaimName returns the name of the claim of a data disk: the one in the status, or else that of a new claim.
func DataClaimName(vm *v1alpha1.VirtualMachine, disk string) string {
	if known := DataDiskStatus(&vm.Status, disk); known != nil {
		return known.VolumeClaimName
	}
	return dataClaimName(vm.Name, disk)
}

func dataClaimName(vm, disk string) string { return vm + "-" + disk }

// DataDiskStatus returns the entry of a data disk in a status; nil if there is none.
func DataDiskStatus(status *v1alpha1.VirtualMachineStatus, disk string) *v1alpha1.DataDiskStatus {
	for i := range status.DataDisks {
		if status.DataDisks[i].Name == disk {
			return &status.DataDisks[i]
		}
	}
	return nil
}

// IsDataClaim reports whether a claim of a VM belongs to a data disk. It does not rely on the label alone, which
// users can remove: a claim that belongs to no data disk may be deleted after a migration.
func IsDataClaim(vm *v1alpha1.VirtualMachine, claim *corev1.PersistentVolumeClaim) bool {
	return claim.Labels[v1alpha1.LabelDataDisk] != "" ||
		IsTargetDataClaim(&vm.Status, claim.Name) ||
		slices.ContainsFunc(vm.Status.DataDisks, func(disk v1alpha1.DataDiskStatus) bool { return disk.VolumeClaimName == claim.Name }) ||
		slices.ContainsFunc(vm.Spec.DataDisks, func(disk v1alpha1.DataDisk) bool { return DataClaimName(vm, disk.Name) == claim.Name })
}

// IsClaimOf reports whether a claim of a VM may belong to a disk. The disk is the name of a data disk, or "" for the
// root disk.
func IsClaimOf(vm *v1alpha1.VirtualMachine, claim *corev1.PersistentVolumeClaim, disk string) bool {
	if disk == "" {
		return !IsDataClaim(vm, claim)
	}
	return claim.Labels[v1alpha1.LabelDataDisk] == disk || claim.Name == DataClaimName(vm, disk)
}

// DataClaims returns the data disks of a Pod, with their claims.
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

// NextDataDisks returns the data disks for the status when the name of the next Pod is reserved. They are the data
// disks of the spec, and those that were prepared earlier, even if the spec no longer has them.
func NextDataDisks(vm *v1alpha1.VirtualMachine) []v1alpha1.DataDiskStatus {
	var next []v1alpha1.DataDiskStatus
	for _, disk := range vm.Spec.DataDisks {
		known := DataDiskStatus(&vm.Status, disk.Name)
		next = append(next, v1alpha1.DataDiskStatus{
			Name: disk.Name, VolumeClaimName: DataClaimName(vm, disk.Name), Prepared: known != nil && known.Prepared && !ReplacesDisk(vm),
		})
	}
	for _, disk := range vm.Status.DataDisks {
		if disk.Prepared && !hasDataDisk(&vm.Spec, disk.Name) {
			next = append(next, disk)
		}
	}
	return next
}

// NewDataDisks reports whether RecordDataDisks would change the status of a VM.
func NewDataDisks(vm *v1alpha1.VirtualMachine, report *vmpb.ReportStateRequest) bool {
	return slices.ContainsFunc(report.GetDisks(), func(disk *vmpb.DiskSize) bool {
		known := DataDiskStatus(&vm.Status, disk.GetName())
		return known != nil && !known.Prepared || known == nil && hasDataDisk(&vm.Spec, disk.GetName())
	})
}

// RecordDataDisks records which data disks are complete according to a report. If the status was lost, it restores
// the entries of the spec's data disks.
func RecordDataDisks(spec *v1alpha1.VirtualMachineSpec, status *v1alpha1.VirtualMachineStatus, report *vmpb.ReportStateRequest) {
	for _, disk := range report.GetDisks() {
		name := disk.GetName()
		if known := DataDiskStatus(status, name); known != nil {
			known.Prepared = true
		} else if hasDataDisk(spec, name) {
			claim := dataClaimName(report.GetUs().GetVmName(), name)
			status.DataDisks = append(status.DataDisks, v1alpha1.DataDiskStatus{Name: name, VolumeClaimName: claim, Prepared: true})
		}
	}
}

func hasDataDisk(spec *v1alpha1.VirtualMachineSpec, name string) bool {
	return slices.ContainsFunc(spec.DataDisks, func(disk v1alpha1.DataDisk) bool { return disk.Name == name })
}

// dataDisks returns the data disks of the next hypervisor: those of the spec that have a reserved claim.
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

// dataDiskPath returns the path of a data disk in the container.
func dataDiskPath(disk *v1alpha1.DataDisk) string {
	if IsBlock(&disk.VolumeClaimTemplate) {
		return vmpb.DataDevicePath(disk.Name)
	}
	return vmpb.DataDiskPath(disk.Name)
}

// requested returns the storage request of a template, in bytes.
func requested(template *v1alpha1.VolumeClaimTemplate) uint64 {
	return uint64(max(0, template.Spec.Resources.Requests.Storage().Value()))
}

// Claim returns a claim for a disk of a VM, based on the fields of a template that InvalidTemplate permits. The disk is
// the name of a data disk, or "" for the root disk.
func Claim(vm *v1alpha1.VirtualMachine, disk string, template *v1alpha1.VolumeClaimTemplate, name string) *corev1.PersistentVolumeClaim {
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: vm.Namespace,
			Labels: map[string]string{}, Annotations: claimAnnotations(template),
			OwnerReferences: []metav1.OwnerReference{OwnerReference(vm)},
		},
		Spec: claimSpec(&template.Spec),
	}
	maps.Copy(claim.Labels, template.Metadata.Labels)
	claim.Labels[v1alpha1.LabelVM] = vm.Name
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, v1alpha1.AnnotationUUID, vm.Spec.UUID)
	if claim.Labels[v1alpha1.LabelDataDisk] = disk; disk == "" {
		delete(claim.Labels, v1alpha1.LabelDataDisk)
	}
	return claim
}

// IsRestoredClaim reports whether a claim without a controller belonged to a VM before both were restored from a backup.
// The UUID is random, so a VM that only has the same name does not get the claim.
func IsRestoredClaim(vm *v1alpha1.VirtualMachine, claim *corev1.PersistentVolumeClaim) bool {
	return claim.DeletionTimestamp.IsZero() && metav1.GetControllerOfNoCopy(claim) == nil && claim.Labels[v1alpha1.LabelVM] == vm.Name &&
		vm.Spec.UUID != "" && claim.Annotations[v1alpha1.AnnotationUUID] == vm.Spec.UUID
}

// Adopt makes a VM the controller of a claim.
func Adopt(vm *v1alpha1.VirtualMachine, claim *corev1.PersistentVolumeClaim) {
	claim.OwnerReferences = append(claim.OwnerReferences, OwnerReference(vm))
}

// InvalidDataDisks returns what is wrong with the data disks of a spec that the API server has admitted, or "" if
// they are valid.
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

// InvalidSize returns what is wrong with the size in a template, or "" if it is valid. The field is the path of the
// template. A nil template is valid.
func InvalidSize(template *v1alpha1.VolumeClaimTemplate, field string) string {
	if template == nil {
		return ""
	}
	field += ".spec.resources.requests.storage: "
	switch size := template.Spec.Resources.Requests.Storage(); {
	case size.Sign() <= 0:
		return field + "must be set to the size of the disk"
	case size.CmpInt64(MaxDiskBytes) > 0:
		return field + size.String() + " exceeds the maximum of 4Pi"
	}
	return ""
}

// IsBlock reports whether a template requests a block device. The template may be nil.
func IsBlock(template *v1alpha1.VolumeClaimTemplate) bool {
	return template != nil && ModeOf(&template.Spec) == corev1.PersistentVolumeBlock
}

// OnDevices reports whether any disk of the hypervisor in a Pod is a block device. If pod is nil, it reports on the
// next hypervisor.
func OnDevices(vm *v1alpha1.VirtualMachine, pod *corev1.Pod) bool {
	if pod != nil {
		container := Hypervisor(pod)
		return container != nil && len(container.VolumeDevices) > 0
	}
	return IsBlock(vm.Spec.VolumeClaimTemplate) ||
		slices.ContainsFunc(vm.Spec.DataDisks, func(disk v1alpha1.DataDisk) bool { return IsBlock(&disk.VolumeClaimTemplate) })
}

// ModeOf returns the volume mode of a claim.
func ModeOf(claim *corev1.PersistentVolumeClaimSpec) corev1.PersistentVolumeMode {
	return ptr.Deref(claim.VolumeMode, corev1.PersistentVolumeFilesystem)
}

// UnlockedDevices returns the field of a disk that is a block device with access mode ReadWriteMany in a VM without
// leases, or "" if there is none. Locks on such a device do not exclude other hosts, so nothing would prevent a
// second hypervisor from changing the disk.
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
