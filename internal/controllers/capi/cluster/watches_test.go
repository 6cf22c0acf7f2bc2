package cluster

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
)

// TestAddressChanges: what may tell where the API servers are.
func TestAddressChanges(t *testing.T) {
	machine := func(controlPlane bool, addresses int) *infrav1.MillwrightMachine {
		made := &infrav1.MillwrightMachine{}
		if controlPlane {
			made.Labels = map[string]string{core.LabelControlPlane: ""}
		}
		for range addresses {
			made.Status.Addresses = append(made.Status.Addresses, infrav1.MachineAddress{Type: corev1.NodeInternalIP, Address: "a"})
		}
		return made
	}
	for name, tc := range map[string]struct {
		was, is *infrav1.MillwrightMachine
		want    bool
	}{
		"worker":                         {machine(false, 0), machine(false, 1), false},
		"an address":                     {machine(true, 0), machine(true, 1), true},
		"nothing of interest":            {machine(true, 1), machine(true, 1), false},
		"is of the control plane, later": {machine(false, 1), machine(true, 1), true},
	} {
		if got := addressChanges().Update(event.UpdateEvent{ObjectOld: tc.was, ObjectNew: tc.is}); got != tc.want {
			t.Errorf("%s: %t, want %t", name, got, tc.want)
		}
	}
}
