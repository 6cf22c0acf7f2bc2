package machine

import (
	"context"
	"testing"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// TestClassOfAnOlderKind: a Machine waits for the migration of its class without a word, says what is in
// the way of it, and goes on afterwards.
func TestClassOfAnOlderKind(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	now := Migration{Pending: true}
	h.controller.Migration = func(_ context.Context, namespace string, class v1alpha1.ClassSpec) (Migration, error) {
		if namespace != h.Key.Namespace || class.Kind != "AWSMachineClass" || class.Name != className {
			t.Errorf("asked about %s %s/%s", class.Kind, namespace, class.Name)
		}
		return now, nil
	}
	h.declare(func(m *v1alpha1.Machine) { m.Spec.Class.Kind = "AWSMachineClass" })
	if result := h.Settle(); result.RequeueAfter != migrationCheck {
		t.Errorf("looks again after %v", result.RequeueAfter)
	}
	if machine := h.machine(); machine.Status.CurrentStatus.Phase != "" || len(h.methods()) > 0 || len(h.takeEvents()) > 0 {
		t.Errorf("status %+v, calls %v", machine.Status, h.methods())
	}
	now.Problem = "not now"
	h.Clock.Step(migrationCheck)
	h.Settle()
	wantStatus(t, h.machine(), want4{v1alpha1.MachineCrashLoopBackOff, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateFailed, "not now"})
	change(h, h.machine(), func(m *v1alpha1.Machine) { m.Spec.Class.Kind = v1alpha1.MachineClassKind })
	h.Settle()
	if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachinePending {
		t.Errorf("after the migration the phase is %q", got)
	}
}

// TestDeletionAwaitsTheMigration: the driver may know a VM that the Machine does not name, and only with
// a class can it be asked. Where nobody migrates the class, the Machine goes.
func TestDeletionAwaitsTheMigration(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		migration Migration
		ends      bool
	}{
		"to come":     {Migration{Pending: true}, true},
		"in trouble":  {Migration{Pending: true, Problem: "not now"}, true},
		"not to come": {Migration{Problem: "never"}, false},
		"not known":   {Migration{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t)
			h.controller.Migration = func(context.Context, string, v1alpha1.ClassSpec) (Migration, error) { return tc.migration, nil }
			machine := &v1alpha1.Machine{}
			machine.Namespace, machine.Name = h.Key.Namespace, h.Key.Name
			machine.Spec.Class = v1alpha1.ClassSpec{Kind: "AWSMachineClass", Name: className}
			result := h.controller.instances.delete(t.Context(), h.controller.newScope(machine, &memory{}))
			if result.Ends() != tc.ends {
				t.Errorf("ends the pass: %t, %+v", result.Ends(), result)
			}
		})
	}
}
