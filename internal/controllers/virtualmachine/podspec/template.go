package podspec

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// claimFields are the fields of a template's spec that claims get. Of the resources, claims get only the size.
var claimFields = []string{"accessModes", "resources", "storageClassName", "volumeMode"}

// claimSpec returns the part of a claim's spec that the author of a VM may choose. The VM controller creates claims
// with its own permissions, so claims get nothing else: for example, a data source, a volume name or a selector can
// give the VM a disk of others, or a copy of it.
func claimSpec(from *corev1.PersistentVolumeClaimSpec) corev1.PersistentVolumeClaimSpec {
	from = from.DeepCopy()
	spec := corev1.PersistentVolumeClaimSpec{
		AccessModes: from.AccessModes, StorageClassName: from.StorageClassName, VolumeMode: from.VolumeMode,
	}
	if size, found := from.Resources.Requests[corev1.ResourceStorage]; found {
		spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: size}
	}
	if len(spec.AccessModes) == 0 {
		spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	}
	return spec
}

// claimAnnotations returns the annotations of a template that claims get: those without a prefix. Others can be
// instructions to a storage driver, such as to clone the volume of another claim.
func claimAnnotations(template *v1alpha1.VolumeClaimTemplate) map[string]string {
	annotations := maps.Clone(template.Metadata.Annotations)
	maps.DeleteFunc(annotations, func(key, _ string) bool { return strings.Contains(key, "/") })
	return annotations
}

// InvalidTemplate returns which field of a template claims do not get, or "" if they get all of them. The field is
// the path of the template.
func InvalidTemplate(template *v1alpha1.VolumeClaimTemplate, field string) (string, error) {
	set, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&template.Spec)
	if err != nil {
		return "", fmt.Errorf("%s.spec: %w", field, err)
	}
	for _, name := range claimFields {
		delete(set, name)
	}
	refused := slices.Collect(maps.Keys(set))
	if len(template.Spec.Resources.Limits) > 0 {
		refused = append(refused, "resources.limits")
	}
	for name := range template.Spec.Resources.Requests {
		if name != corev1.ResourceStorage {
			refused = append(refused, "resources.requests."+string(name))
		}
	}
	if len(refused) > 0 {
		return fmt.Sprintf("%s.spec.%s: must not be set; set only accessModes, resources.requests.storage, storageClassName and volumeMode", field, slices.Min(refused)), nil
	}
	for _, key := range slices.Sorted(maps.Keys(template.Metadata.Annotations)) {
		if strings.Contains(key, "/") {
			return fmt.Sprintf("%s.metadata.annotations: %s must not be set, because a storage driver may obey it; use keys without a prefix, or annotate the claim when it exists", field, key), nil
		}
	}
	return "", nil
}
