package machine

import (
	"testing"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
)

// TestRestoredWithoutItsDeletion: a Machine comes back from a backup as Terminating, and nobody
// deletes it. Its VM is looked for as that of a new one is.
func TestRestoredWithoutItsDeletion(t *testing.T) {
	for name, test := range map[string]struct {
		noTarget bool
		act      func(*world)
		want     v1alpha1.MachinePhase
	}{
		"its VM and node are well":     {false, func(*world) {}, v1alpha1.MachineRunning},
		"its node is gone":             {false, func(w *world) { w.dropNode() }, v1alpha1.MachinePending},
		"its VM is gone, and its node": {false, func(w *world) { clear(w.driver.vms); w.dropNode() }, v1alpha1.MachineUnknown},
		"it has no node to wait for":   {true, func(*world) {}, v1alpha1.MachineAvailable},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			if test.noTarget {
				w.withoutTarget()
			}
			w.declare()
			w.settle()
			if !test.noTarget {
				w.join(ready)
				w.settle()
			}
			machine := w.machine()
			machine.Status.CurrentStatus.Phase = v1alpha1.MachineTerminating
			if err := w.control.Status().Update(t.Context(), machine); err != nil {
				t.Fatal(err)
			}
			test.act(w)
			w.restart(w.driver)
			if test.noTarget {
				w.withoutTarget()
			}
			w.settle()
			if got := w.machine().Status.CurrentStatus.Phase; got != test.want {
				t.Errorf("phase %q, want %q", got, test.want)
			}
			if n := w.driver.made(instance.MethodCreate); n != 1 {
				t.Errorf("%d VMs were made", n)
			}
		})
	}
}
