package scheme_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/gardener/machine-controller-manager/pkg/apis/machine"
	"github.com/gardener/machine-controller-manager/pkg/apis/machine/v1alpha1"
	"github.com/gardener/machine-controller-manager/pkg/client/clientset/versioned/scheme"
)

func TestScheme(t *testing.T) {
	other := runtime.NewScheme()
	if err := scheme.AddToScheme(other); err != nil {
		t.Fatal(err)
	}
	third := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(third); err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]*runtime.Scheme{"Scheme": scheme.Scheme, "AddToScheme": other, "v1alpha1": third} {
		for _, kind := range []string{"Machine", "MachineSet", "MachineDeployment", "MachineClass", "MachineList"} {
			if !s.Recognizes(v1alpha1.SchemeGroupVersion.WithKind(kind)) {
				t.Errorf("%s: kind %s is missing", name, kind)
			}
		}
	}
	if v1alpha1.SchemeGroupVersion.Group != machine.GroupName {
		t.Errorf("got group %s", v1alpha1.SchemeGroupVersion.Group)
	}
	read, _, err := scheme.Codecs.UniversalDeserializer().Decode([]byte(`{"apiVersion":"machine.sapcloud.io/v1alpha1","kind":"Machine","metadata":{"name":"m"}}`), nil, nil)
	if m, ok := read.(*v1alpha1.Machine); err != nil || !ok || m.Name != "m" {
		t.Errorf("got %v, %v", read, err)
	}
}
