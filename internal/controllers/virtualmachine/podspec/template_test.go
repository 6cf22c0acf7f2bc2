package podspec

import (
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// everyClaimField returns a template in which every field of the claim's spec is set.
func everyClaimField(t *testing.T) *v1alpha1.VolumeClaimTemplate {
	t.Helper()
	source := corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "other"}
	gibibyte := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi"), corev1.ResourceCPU: resource.MustParse("1")}
	spec := corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}, StorageClassName: ptr.To("fast"), VolumeMode: ptr.To(corev1.PersistentVolumeBlock),
		Resources: corev1.VolumeResourceRequirements{Requests: gibibyte, Limits: gibibyte},
		Selector:  &metav1.LabelSelector{}, VolumeName: "pv", DataSource: &source, VolumeAttributesClassName: ptr.To("gold"),
		DataSourceRef: &corev1.TypedObjectReference{Kind: source.Kind, Name: source.Name},
	}
	for field, value := range reflect.ValueOf(spec).Fields() {
		if value.IsZero() {
			t.Fatalf("field %s is new; decide whether claims get it, and set it here", field.Name)
		}
	}
	return &v1alpha1.VolumeClaimTemplate{Spec: spec, Metadata: v1alpha1.VolumeClaimMetadata{
		Labels:      map[string]string{"team": "a", "example.com/team": "a"},
		Annotations: map[string]string{"note": "x", "trident.netapp.io/cloneFromPVC": "other", "k8s.io/CloneRequest": "kube-system/other"},
	}}
}

// TestClaim_HasOnlyPermittedFields checks that a claim, including that of a migration target, gets only the fields of a
// template that cannot refer to a disk of others.
func TestClaim_HasOnlyPermittedFields(t *testing.T) {
	vm := fixture.Named("a", fixture.VirtualMachine())
	vm.Spec.VolumeClaimTemplate = everyClaimField(t)
	template := everyClaimField(t)
	source := &corev1.PersistentVolumeClaim{Spec: template.Spec}
	want := corev1.PersistentVolumeClaimSpec{
		AccessModes: template.Spec.AccessModes, StorageClassName: template.Spec.StorageClassName, VolumeMode: template.Spec.VolumeMode,
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
	}
	for what, claim := range map[string]*corev1.PersistentVolumeClaim{
		"first":  Claim(vm, "", template, "a"),
		"target": TargetClaim(vm, CopiedClaim{From: "a", To: "a-x"}, source),
	} {
		if diff := cmp.Diff(want, claim.Spec); diff != "" {
			t.Errorf("%s: spec (-want +got):\n%s", what, diff)
		}
		if diff := cmp.Diff(map[string]string{"note": "x", v1alpha1.AnnotationUUID: vm.Spec.UUID}, claim.Annotations); diff != "" {
			t.Errorf("%s: annotations (-want +got):\n%s", what, diff)
		}
		if claim.Labels["example.com/team"] != "a" {
			t.Errorf("%s: the labels are %v", what, claim.Labels)
		}
	}
}

// TestInvalidTemplate_NamesField checks that each field that claims do not get is refused by name.
func TestInvalidTemplate_NamesField(t *testing.T) {
	permitted := func(change func(*v1alpha1.VolumeClaimTemplate)) *v1alpha1.VolumeClaimTemplate {
		template := &v1alpha1.VolumeClaimTemplate{Spec: claimSpec(&everyClaimField(t).Spec)}
		template.Metadata = v1alpha1.VolumeClaimMetadata{Labels: map[string]string{"example.com/team": "a"}, Annotations: map[string]string{"note": "x"}}
		change(template)
		return template
	}
	every := everyClaimField(t)
	for field, change := range map[string]func(*v1alpha1.VolumeClaimTemplate){
		"":                       func(*v1alpha1.VolumeClaimTemplate) {},
		"spec.dataSource:":       func(v *v1alpha1.VolumeClaimTemplate) { v.Spec.DataSource = every.Spec.DataSource },
		"spec.dataSourceRef:":    func(v *v1alpha1.VolumeClaimTemplate) { v.Spec.DataSourceRef = every.Spec.DataSourceRef },
		"spec.volumeName:":       func(v *v1alpha1.VolumeClaimTemplate) { v.Spec.VolumeName = "pv" },
		"spec.selector:":         func(v *v1alpha1.VolumeClaimTemplate) { v.Spec.Selector = every.Spec.Selector },
		"spec.resources.limits:": func(v *v1alpha1.VolumeClaimTemplate) { v.Spec.Resources.Limits = every.Spec.Resources.Limits },
		"spec.resources.requests.cpu:": func(v *v1alpha1.VolumeClaimTemplate) {
			v.Spec.Resources.Requests = every.Spec.Resources.Requests
		},
		"spec.volumeAttributesClassName:": func(v *v1alpha1.VolumeClaimTemplate) { v.Spec.VolumeAttributesClassName = ptr.To("gold") },
		"metadata.annotations: k8s.io/CloneRequest ": func(v *v1alpha1.VolumeClaimTemplate) {
			v.Metadata.Annotations = every.Metadata.Annotations
		},
	} {
		got, err := InvalidTemplate(permitted(change), "template")
		if err != nil || (field == "") != (got == "") || field != "" && !strings.HasPrefix(got, "template."+field) {
			t.Errorf("%s: %q, %v", field, got, err)
		}
	}
}
