package finalizers

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// TestClasses_FinalizerWhileUsed checks that a class has the finalizer while a machine refers to it.
func TestClasses_FinalizerWhileUsed(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{infrav1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	class := &v1alpha1.MachineClass{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "small", Finalizers: []string{v1alpha1.FinalizerMCM}}}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(class).
		WithIndex(&infrav1.MillwrightMachine{}, ByClass, Indexes[ByClass]).Build()
	controller := NewForClasses(c, nil)
	finalizers := func() []string {
		t.Helper()
		for range 2 {
			if _, err := controller.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(class)}); err != nil {
				t.Fatal(err)
			}
		}
		got := &v1alpha1.MachineClass{}
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(class), got); err != nil {
			t.Fatal(err)
		}
		return got.Finalizers
	}
	machine := func(name, class string) *infrav1.MillwrightMachine {
		m := &infrav1.MillwrightMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
		m.Spec.MachineClassRef = &infrav1.LocalReference{Name: class}
		if err := c.Create(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		return m
	}
	expect := func(when string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, finalizers()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
	machine("other", "large")
	expect("unused", v1alpha1.FinalizerMCM)
	user := machine("user", "small")
	expect("used", v1alpha1.FinalizerMCM, infrav1.ClassFinalizer)
	if err := c.Delete(t.Context(), user); err != nil {
		t.Fatal(err)
	}
	expect("no longer used", v1alpha1.FinalizerMCM)
}
