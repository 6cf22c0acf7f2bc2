package template

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
)

// TestTemplate_StatusHasCapacity checks that the status has the capacity of the class and the template as long as both exist, and that
// it is written only when it changes (T4).
func TestTemplate_StatusHasCapacity(t *testing.T) {
	class := &v1alpha1.MachineClass{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "small"}}
	class.NodeTemplate = &v1alpha1.NodeTemplate{Capacity: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")}}
	template := &infrav1.MillwrightMachineTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "t"}}
	template.Spec.Template.Spec.MachineClassRef = &infrav1.LocalReference{Name: "small"}
	template.Spec.Template.Spec.NodeTemplate = &infrav1.NodeTemplate{
		Capacity: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("8Gi")}, Architecture: "arm64",
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{infrav1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(class, template).WithStatusSubresource(template).Build()
	controller := New(Options{Client: c})
	reconcile := func() *infrav1.MillwrightMachineTemplate {
		t.Helper()
		if _, err := controller.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(template)}); err != nil {
			t.Fatal(err)
		}
		got := &infrav1.MillwrightMachineTemplate{}
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(template), got); err != nil {
			t.Fatal(err)
		}
		return got
	}
	first := reconcile()
	want := infrav1.MillwrightMachineTemplateStatus{
		Capacity: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi")},
		NodeInfo: &infrav1.NodeInfo{Architecture: "arm64", OperatingSystem: "linux"},
	}
	if diff := cmp.Diff(want, first.Status); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	if second := reconcile(); second.ResourceVersion != first.ResourceVersion {
		t.Error("writes without a change")
	}
	if err := c.Delete(t.Context(), class); err != nil {
		t.Fatal(err)
	}
	delete(want.Capacity, corev1.ResourceCPU)
	if diff := cmp.Diff(want, reconcile().Status); diff != "" {
		t.Errorf("status without the class (-want +got):\n%s", diff)
	}
}

// TestController_IgnoresObjectsOfOthers checks that paused templates and those of another manager are not changed.
func TestController_IgnoresObjectsOfOthers(t *testing.T) {
	for name, change := range map[string]func(*infrav1.MillwrightMachineTemplate){
		"paused": func(m *infrav1.MillwrightMachineTemplate) {
			m.Annotations = map[string]string{core.AnnotationPaused: ""}
		},
		"paused Cluster": func(m *infrav1.MillwrightMachineTemplate) {
			m.OwnerReferences = []metav1.OwnerReference{{APIVersion: core.V1Beta2.String(), Kind: core.ClusterKind, Name: "paused"}}
		},
		"watch filter": func(m *infrav1.MillwrightMachineTemplate) { m.Labels = nil },
	} {
		t.Run(name, func(t *testing.T) {
			template := &infrav1.MillwrightMachineTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "t", Labels: map[string]string{core.LabelWatchFilter: "ours"}}}
			template.Spec.Template.Spec.NodeTemplate = &infrav1.NodeTemplate{Architecture: "arm64"}
			change(template)
			scheme := runtime.NewScheme()
			if err := infrav1.AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			core.AddToScheme(scheme, core.V1Beta2)
			cluster := &core.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "paused"}}
			cluster.Spec.Paused = true
			c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(template, cluster).WithStatusSubresource(template).Build()
			controller := New(Options{Client: c, WatchFilter: "ours"})
			if found := controller.ofCluster(t.Context(), cluster); (len(found) == 1) != (len(template.OwnerReferences) == 1) {
				t.Errorf("templates of the Cluster: %v", found)
			}
			if _, err := controller.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(template)}); err != nil {
				t.Fatal(err)
			}
			got := &infrav1.MillwrightMachineTemplate{}
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(template), got); err != nil || got.Status.NodeInfo != nil {
				t.Errorf("status %+v, %v", got.Status, err)
			}
		})
	}
}
