package inplaceupdate

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// TestUpdated checks that a Machine moves only when its phase also shows the result. The machine controller
// reads the result from a label that the node loses with the move.
func TestUpdated(t *testing.T) {
	node := fixture.Node(func(n *corev1.Node) {
		n.Labels = map[string]string{v1alpha1.LabelKeyNodeUpdateResult: v1alpha1.LabelValueNodeUpdateSuccessful}
		n.Status.Conditions = []corev1.NodeCondition{{Type: v1alpha1.NodeInPlaceUpdate, Reason: v1alpha1.UpdateSuccessful}}
	})
	for phase, want := range map[v1alpha1.MachinePhase]bool{
		v1alpha1.MachineInPlaceUpdating:         false,
		v1alpha1.MachineInPlaceUpdateFailed:     false, // at first
		v1alpha1.MachineInPlaceUpdateSuccessful: true,
		v1alpha1.MachineRunning:                 true,
	} {
		machine := fixture.Machine(func(m *v1alpha1.Machine) { m.Status.CurrentStatus.Phase = phase })
		if got := Updated(machine, node); got != want {
			t.Errorf("%s: %t, want %t", phase, got, want)
		}
	}
}
