package manager

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/legacy"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/fakeclient"
)

// TestClassOf_DrainedMachine checks that a Machine's class is found if it is a MachineClass.
func TestClassOf_DrainedMachine(t *testing.T) {
	t.Parallel()
	kinds := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(kinds); err != nil {
		t.Fatal(err)
	}
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "ns", Name: name} }
	objects := []client.Object{&v1alpha1.MachineClass{ObjectMeta: meta("big"), Provider: "aws"}}
	for name, class := range map[string]v1alpha1.ClassSpec{
		"whole":   {Kind: v1alpha1.MachineClassKind, Name: "big"},
		"older":   {Kind: legacy.AWS, Name: "big"},
		"missing": {Kind: v1alpha1.MachineClassKind, Name: "small"},
	} {
		objects = append(objects, &v1alpha1.Machine{ObjectMeta: meta(name), Spec: v1alpha1.MachineSpec{Class: class}})
	}
	from := fakeclient.NewBuilder(kinds).WithObjects(objects...).Build()
	for name, want := range map[string]bool{"whole": true, "older": false, "missing": false, "gone": false} {
		class, err := classOf(t.Context(), from, client.ObjectKey{Namespace: "ns", Name: name})
		if err != nil || (class != nil) != want || class != nil && class.Provider != "aws" {
			t.Errorf("%s: %v, %v", name, class, err)
		}
	}
}
