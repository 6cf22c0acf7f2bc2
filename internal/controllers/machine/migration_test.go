package machine

import (
	"context"
	"testing"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// TestMachine_WaitsForMigrationOfClass checks that a Machine waits silently for the migration of its class, reports a problem
// with the migration, and continues afterwards.
func TestMachine_WaitsForMigrationOfClass(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	now := Migration{Pending: true}
	h.controller.Migration = func(_ context.Context, namespace string, class v1alpha1.ClassSpec) (Migration, error) {
		if namespace != h.Key.Namespace || class.Kind != "AWSMachineClass" || class.Name != className {
			t.Errorf("unexpected class %s %s/%s", class.Kind, namespace, class.Name)
		}
		return now, nil
	}
	h.declare(func(m *v1alpha1.Machine) { m.Spec.Class.Kind = "AWSMachineClass" })
	if result := h.Settle(); result.RequeueAfter != migrationCheck {
		t.Errorf("the next pass is due in %v", result.RequeueAfter)
	}
	if machine := h.machine(); machine.Status.CurrentStatus.Phase != "" || len(h.methods()) > 0 || len(h.takeEvents()) > 0 {
		t.Errorf("status %+v, calls %v", machine.Status, h.methods())
	}
	now.Problem = "not now"
	h.Clock.Step(migrationCheck)
	h.Settle()
	wantStatus(t, h.machine(), statusFields{v1alpha1.MachineCrashLoopBackOff, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateFailed, "not now"})
	change(h, h.machine(), func(m *v1alpha1.Machine) { m.Spec.Class.Kind = v1alpha1.MachineClassKind })
	h.Settle()
	if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachinePending {
		t.Errorf("phase %q after the migration", got)
	}
}

// TestMachine_DeletionWaitsForMigrationOfClass checks that a deletion waits for the migration of the class, since the VM may
// exist even if the Machine has no provider ID, and only a class lets the driver find it. If the class is not
// migrated, the deletion continues.
func TestMachine_DeletionWaitsForMigrationOfClass(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		migration Migration
		waits     bool
	}{
		"to come":    {Migration{Pending: true}, true},
		"in trouble": {Migration{Pending: true, Problem: "not now"}, true},
		"impossible": {Migration{Problem: "never"}, false},
		"not known":  {Migration{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t)
			h.controller.Migration = func(context.Context, string, v1alpha1.ClassSpec) (Migration, error) { return tc.migration, nil }
			machine := &v1alpha1.Machine{}
			machine.Namespace, machine.Name = h.Key.Namespace, h.Key.Name
			machine.Spec.Class = v1alpha1.ClassSpec{Kind: "AWSMachineClass", Name: className}
			result := h.controller.instances.delete(t.Context(), h.controller.newScope(machine, &memory{}))
			if result.StopsPass() != tc.waits {
				t.Errorf("StopsPass = %t, result %+v", result.StopsPass(), result)
			}
		})
	}
}
