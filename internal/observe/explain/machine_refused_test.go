package explain

import (
	"strings"
	"testing"
	"time"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// TestMachine_AdviceOnRejectedDeletion checks that the advice is given only if the VM may never have existed.
func TestMachine_AdviceOnRejectedDeletion(t *testing.T) {
	refused := func(code, marker string) given {
		step := map[string]string{messages.Terminating: v1alpha1.StepIdentify, messages.DeleteVM: v1alpha1.StepDeleteInstance}[marker]
		return all(driverFailed(code, step, "no such size", time.Minute),
			deletes(failed, time.Minute, messages.Provider+"machine codes error: code = ["+code+"] message = [providerSpec.size: no such size]. "+marker))
	}
	for name, tc := range map[string]struct {
		given given
		want  bool
	}{
		"before the VM is found":   {all(refused("InvalidArgument", messages.Terminating), notCreated), true},
		"the VM cannot be deleted": {all(refused("InvalidArgument", messages.DeleteVM), notCreated), true},
		"not allowed":              {all(refused("PermissionDenied", messages.DeleteVM), notCreated), true},
		"provider unavailable":     {all(refused("Unavailable", messages.DeleteVM), notCreated), false},
		"VM exists":                {refused("InvalidArgument", messages.DeleteVM), false},
	} {
		t.Run(name, func(t *testing.T) {
			advice := strings.Join(Machine(facts(tc.given), now).Advice, "\n")
			for _, want := range []string{
				"You can also correct MachineClass pool-v1 while the machine is being deleted",
				`kubectl -n machines patch machines.machine.sapcloud.io pool-a-x7k2p --type=merge -p '{"metadata":{"finalizers":null}}'`,
			} {
				if given := strings.Contains(advice, want); given != tc.want {
					t.Errorf("contains %q: %t\n%s", want, given, advice)
				}
			}
		})
	}
}
