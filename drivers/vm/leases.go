package vm

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// Fields of the provider specification that determine whether a VM can continue on another host.
const (
	leaseModeField     = "leaseMode"
	leaseDurationField = "leaseDurationSeconds"
	diskAccessField    = "diskAccess"
	accessModesField   = "accessModes"
	volumeModeField    = "volumeMode"
)

// Limits of a VirtualMachine.
const (
	minLeaseSeconds = 6
	maxLeaseSeconds = 600
)

var (
	leaseModes   = []vmv1alpha1.LeaseMode{vmv1alpha1.LeaseStorageLocking, vmv1alpha1.LeaseFullLeases}
	diskAccesses = []vmv1alpha1.DiskAccess{vmv1alpha1.DiskAccessDirect, vmv1alpha1.DiskAccessServed}
	volumeModes  = []corev1.PersistentVolumeMode{corev1.PersistentVolumeFilesystem, corev1.PersistentVolumeBlock}
	// accessModes lacks ReadOnlyMany, because guests write to their disks.
	accessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadWriteMany, corev1.ReadWriteOncePod}
)

// validateLeases rejects what the CRD of VirtualMachines or the VM controller would reject.
func (s *providerSpec) validateLeases() field.ErrorList {
	errs := slices.Concat(
		oneOf(leaseModeField, s.LeaseMode, leaseModes),
		oneOf(diskAccessField, s.DiskAccess, diskAccesses),
		oneOf(volumeModeField, s.VolumeMode, volumeModes),
		s.validateAccessModes(),
	)
	leased := s.LeaseMode == vmv1alpha1.LeaseFullLeases
	if s.LeaseSeconds != nil {
		if *s.LeaseSeconds < minLeaseSeconds || *s.LeaseSeconds > maxLeaseSeconds {
			errs = append(errs, outOfRange(leaseDurationField, *s.LeaseSeconds, "6 and 600"))
		}
		if !leased {
			errs = append(errs, field.Forbidden(specPath.Child(leaseDurationField), "needs leaseMode FullLeases"))
		}
	}
	block := s.VolumeMode == corev1.PersistentVolumeBlock
	if s.DiskAccess == vmv1alpha1.DiskAccessServed {
		if !leased {
			errs = append(errs, field.Invalid(specPath.Child(diskAccessField), s.DiskAccess, "needs leaseMode FullLeases"))
		}
		if block {
			errs = append(errs, field.Invalid(specPath.Child(diskAccessField), s.DiskAccess, "needs disks of volumeMode Filesystem"))
		}
	}
	if block && !leased && slices.Contains(s.AccessModes, corev1.ReadWriteMany) {
		errs = append(errs, field.Invalid(specPath.Child(accessModesField), s.AccessModes,
			"block devices with access mode ReadWriteMany have no locks between hosts; use leaseMode FullLeases, or access mode ReadWriteOnce"))
	}
	return errs
}

// oneOf returns an error unless the value of a field is empty or supported.
func oneOf[T ~string](name string, value T, supported []T) field.ErrorList {
	if value == "" || slices.Contains(supported, value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(specPath.Child(name), value, supported)}
}

func (s *providerSpec) validateAccessModes() field.ErrorList {
	var errs field.ErrorList
	path := specPath.Child(accessModesField)
	for i, mode := range s.AccessModes {
		switch {
		case !slices.Contains(accessModes, mode):
			errs = append(errs, field.NotSupported(path.Index(i), mode, accessModes))
		case slices.Contains(s.AccessModes[:i], mode):
			errs = append(errs, field.Duplicate(path.Index(i), mode))
		}
	}
	// The API server rejects such claims.
	if len(errs) == 0 && len(s.AccessModes) > 1 && slices.Contains(s.AccessModes, corev1.ReadWriteOncePod) {
		errs = append(errs, field.Invalid(path, s.AccessModes, "ReadWriteOncePod cannot be combined with other access modes"))
	}
	return errs
}

// claimModes returns the access modes and the volume mode of the claims, in the form in which VMs of earlier versions
// have them: the access modes are sorted, and Filesystem is nil.
func (s *providerSpec) claimModes() ([]corev1.PersistentVolumeAccessMode, *corev1.PersistentVolumeMode) {
	access := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	if len(s.AccessModes) > 0 {
		access = slices.Sorted(slices.Values(s.AccessModes))
	}
	if s.VolumeMode == corev1.PersistentVolumeBlock {
		return access, new(corev1.PersistentVolumeBlock)
	}
	return access, nil
}

// keepDisks sets how hosts access the disks of want to those of an existing VM, except for what the class sets.
func (s *providerSpec) keepDisks(want, have *vmv1alpha1.VirtualMachineSpec) {
	if s.DiskAccess == "" {
		want.DiskAccess = have.DiskAccess
	}
	s.keepModes(want.VolumeClaimTemplate, have.VolumeClaimTemplate)
	for i := range want.DataDisks {
		wantDisk := &want.DataDisks[i]
		at := slices.IndexFunc(have.DataDisks, func(disk vmv1alpha1.DataDisk) bool { return disk.Name == wantDisk.Name })
		if at >= 0 {
			s.keepModes(&wantDisk.VolumeClaimTemplate, &have.DataDisks[at].VolumeClaimTemplate)
		}
	}
}

func (s *providerSpec) keepModes(want, have *vmv1alpha1.VolumeClaimTemplate) {
	if have == nil {
		return
	}
	if len(s.AccessModes) == 0 {
		want.Spec.AccessModes = have.Spec.AccessModes
	}
	if s.VolumeMode == "" {
		want.Spec.VolumeMode = have.Spec.VolumeMode
	}
}

// needsLeases reports whether a VM is invalid with leaseMode StorageLocking.
func needsLeases(spec *vmv1alpha1.VirtualMachineSpec) bool {
	shared := func(template *vmv1alpha1.VolumeClaimTemplate) bool {
		return template != nil && template.Spec.VolumeMode != nil && *template.Spec.VolumeMode == corev1.PersistentVolumeBlock &&
			slices.Contains(template.Spec.AccessModes, corev1.ReadWriteMany)
	}
	return spec.DiskAccess == vmv1alpha1.DiskAccessServed || shared(spec.VolumeClaimTemplate) ||
		slices.ContainsFunc(spec.DataDisks, func(disk vmv1alpha1.DataDisk) bool { return shared(&disk.VolumeClaimTemplate) })
}
