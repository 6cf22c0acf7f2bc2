package owners

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/driver/sim"
)

// TestClassInAFailureDomainOfTheDriver: VMs are looked for also where only the driver knows
// how they got there.
func TestClassInAFailureDomainOfTheDriver(t *testing.T) {
	w := newWorld(t, true)
	machine := &infrav1.MillwrightMachine{ObjectMeta: metav1.ObjectMeta{Name: "m", Labels: inCluster}}
	machine.Spec = infrav1.MillwrightMachineSpec{
		Driver: "sim", ProviderSpec: &runtime.RawExtension{Raw: []byte(`{"pool":"own"}`)}, FailureDomain: "a",
	}
	w.put(machine)
	face := MillwrightMachines{Cache: w.client, Live: w.client, Namespace: namespace, Driver: "sim"}
	for _, tc := range []struct{ skipped, spec string }{
		{skipped: `failure domain "a" is not in spec.failureDomains`},
		{spec: `{"pool":"own","zone":"a"}`},
	} {
		classes, err := face.Classes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, class := range classes {
			if class.Object.GetName() != "m" {
				continue
			}
			if class.Skip != tc.skipped {
				t.Errorf("skipped for %q, want %q", class.Skip, tc.skipped)
			}
			if tc.spec != "" && string(class.Class.ProviderSpec.Raw) != tc.spec {
				t.Errorf("specification %s, want %s", class.Class.ProviderSpec.Raw, tc.spec)
			}
		}
		if len(classes) != 2 {
			t.Errorf("%d classes", len(classes))
		}
		face.Placer = sim.New(sim.Config{})
	}
}
