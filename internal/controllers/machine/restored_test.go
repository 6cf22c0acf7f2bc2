package machine

import (
	"testing"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/fake"
)

// TestRestoredWithoutItsDeletion: a Machine comes back from a backup as Terminating, and nobody
// deletes it. Its VM is looked for as that of a new one is.
func TestRestoredWithoutItsDeletion(t *testing.T) {
	for name, test := range map[string]struct {
		noTarget bool
		act      func(*harness)
		want     v1alpha1.MachinePhase
	}{
		"its VM and node are well":     {false, func(*harness) {}, v1alpha1.MachineRunning},
		"its node is gone":             {false, func(h *harness) { h.dropNode() }, v1alpha1.MachinePending},
		"its VM is gone, and its node": {false, func(h *harness) { h.removeVMs(); h.dropNode() }, v1alpha1.MachineUnknown},
		"it has no node to wait for":   {true, func(*harness) {}, v1alpha1.MachineAvailable},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			if test.noTarget {
				h.withoutTarget()
			}
			h.declare()
			h.Settle()
			if !test.noTarget {
				h.join(ready)
				h.Settle()
			}
			machine := h.machine()
			machine.Status.CurrentStatus.Phase = v1alpha1.MachineTerminating
			if err := h.control.Status().Update(t.Context(), machine); err != nil {
				t.Fatal(err)
			}
			test.act(h)
			h.restart()
			if test.noTarget {
				h.withoutTarget()
			}
			h.Settle()
			if got := h.machine().Status.CurrentStatus.Phase; got != test.want {
				t.Errorf("phase %q, want %q", got, test.want)
			}
			if n := len(h.Driver.Calls(fake.CreateMachine)); n != 1 {
				t.Errorf("%d VMs were made", n)
			}
		})
	}
}
