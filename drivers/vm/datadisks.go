package vm

import (
	"cmp"
	"fmt"
	"regexp"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// dataDisk is a disk in addition to the root disk.
type dataDisk struct {
	Name             string                   `json:"name"`
	Size             int64                    `json:"size"` // GiB
	StorageClassName string                   `json:"storageClassName,omitempty"`
	Image            *vmv1alpha1.InitialImage `json:"image,omitempty"`
}

// maxDataDisks is the limit of a VirtualMachine.
const maxDataDisks = 12

var dataDiskName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,18}[a-z0-9])?$`)

func (s *providerSpec) validateDataDisks() field.ErrorList {
	var errs field.ErrorList
	all := specPath.Child("dataDisks")
	if len(s.DataDisks) > maxDataDisks {
		return field.ErrorList{field.TooMany(all, len(s.DataDisks), maxDataDisks)}
	}
	names := map[string]bool{}
	for i, disk := range s.DataDisks {
		path := all.Index(i)
		switch {
		case !dataDiskName.MatchString(disk.Name):
			errs = append(errs, field.Invalid(path.Child("name"), disk.Name, "must be 1 to 20 lower-case letters, digits and hyphens, and start and end with a letter or digit"))
		case names[disk.Name]:
			errs = append(errs, field.Duplicate(path.Child("name"), disk.Name))
		}
		names[disk.Name] = true
		if disk.Size < 1 || disk.Size > maxRootFsSize {
			errs = append(errs, field.Invalid(path.Child("size"), disk.Size, fmt.Sprintf("must be between 1 and %d", maxRootFsSize)).WithOrigin(originRange))
		}
		if disk.StorageClassName != "" {
			for _, wrong := range validation.IsDNS1123Subdomain(disk.StorageClassName) {
				errs = append(errs, field.Invalid(path.Child("storageClassName"), disk.StorageClassName, wrong))
			}
		}
		if disk.Image != nil {
			errs = append(errs, validateImage(path.Child("image"), disk.Image)...)
		}
	}
	return errs
}

// dataDisks returns the data disks of the requested VM.
func (s *providerSpec) dataDisks() []vmv1alpha1.DataDisk {
	var disks []vmv1alpha1.DataDisk
	for _, disk := range s.DataDisks {
		disks = append(disks, vmv1alpha1.DataDisk{
			Name: disk.Name, InitialImage: disk.Image,
			VolumeClaimTemplate: *s.claimTemplate(disk.Size, cmp.Or(disk.StorageClassName, s.StorageClassName)),
		})
	}
	return disks
}

// claimTemplate returns a template for the claim of a disk. The size is in GiB. If class is empty, the cluster's
// default storage class is used.
func (s *providerSpec) claimTemplate(size int64, class string) *vmv1alpha1.VolumeClaimTemplate {
	access, mode := s.claimModes()
	template := &vmv1alpha1.VolumeClaimTemplate{Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: access, VolumeMode: mode,
		Resources: corev1.VolumeResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(size<<30, resource.BinarySI)},
		},
	}}
	if class != "" {
		template.Spec.StorageClassName = &class
	}
	return template
}
