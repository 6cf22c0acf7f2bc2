package machine

import (
	"testing"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/fake"
)

// TestMachine_RestoredTerminatingMachineIsReconciled checks a Machine that was restored from a backup with the phase Terminating but
// is not being deleted. It is reconciled like a new Machine.
func TestMachine_RestoredTerminatingMachineIsReconciled(t *testing.T) {
	for name, test := range map[string]struct {
		noTarget bool
		act      func(*harness)
		want     v1alpha1.MachinePhase
	}{
		"its VM and node are healthy": {false, func(*harness) {}, v1alpha1.MachineRunning},
		"its node is missing":         {false, func(h *harness) { h.dropNode() }, v1alpha1.MachinePending},
		"its VM and node are missing": {false, func(h *harness) { h.removeVMs(); h.dropNode() }, v1alpha1.MachineUnknown},
		"there is no target cluster":  {true, func(*harness) {}, v1alpha1.MachineAvailable},
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
				t.Errorf("%d VMs were created", n)
			}
		})
	}
}
