package template

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	corev1 "k8s.io/api/core/v1"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/test/support/absurd"
)

// FuzzReconcile checks that, with arbitrary objects, every reconcile returns and succeeds, nothing is written after the
// last change, and only the status is written.
func FuzzReconcile(f *testing.F) {
	absurd.Seed(f, func(data []byte) {
		f.Add(data, []byte(nil))
		f.Add([]byte(nil), data)
	})
	f.Fuzz(func(t *testing.T, templateData, otherData []byte) {
		class := &v1alpha1.MachineClass{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "small"}}
		class.NodeTemplate = &v1alpha1.NodeTemplate{Capacity: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")}}
		cluster := &core.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}}
		template := &infrav1.MillwrightMachineTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "t"}}
		template.OwnerReferences = []metav1.OwnerReference{{APIVersion: core.V1Beta2.String(), Kind: core.ClusterKind, Name: "c", UID: "u"}}
		template.Spec.Template.Spec.MachineClassRef = &infrav1.LocalReference{Name: "small"}
		template.Spec.Template.Spec.NodeTemplate = &infrav1.NodeTemplate{
			Capacity: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("8Gi")}, Architecture: "arm64",
		}
		absurd.Objects(templateData, template)
		absurd.Objects(otherData, class, cluster)
		scheme := runtime.NewScheme()
		core.AddToScheme(scheme, core.V1Beta2)
		for _, add := range []func(*runtime.Scheme) error{infrav1.AddToScheme, v1alpha1.AddToScheme} {
			if err := add(scheme); err != nil {
				t.Fatal(err)
			}
		}
		c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(class, cluster, template).WithStatusSubresource(template).Build()
		controller, key := New(Options{Client: c}), client.ObjectKeyFromObject(template)
		read := func() *infrav1.MillwrightMachineTemplate {
			t.Helper()
			found := &infrav1.MillwrightMachineTemplate{}
			if err := c.Get(t.Context(), key, found); err != nil {
				t.Fatal(err)
			}
			return found
		}
		before, last := read(), ""
		for range 3 {
			last = read().ResourceVersion
			absurd.Within("a reconcile", func() {
				if _, err := controller.Reconcile(t.Context(), ctrl.Request{NamespacedName: key}); err != nil {
					t.Error(err)
				}
			})
		}
		after := read()
		if after.ResourceVersion != last {
			t.Error("every reconcile writes")
		}
		before.Status, after.Status = infrav1.MillwrightMachineTemplateStatus{}, infrav1.MillwrightMachineTemplateStatus{}
		before.ResourceVersion, after.ResourceVersion = "", ""
		if diff := cmp.Diff(before, after); diff != "" {
			t.Errorf("more than the status changed (-before +after):\n%s", diff)
		}
		absurd.Within("an event", func() { controller.ofClass(t.Context(), class); controller.ofCluster(t.Context(), cluster) })
	})
}
