package explain

import (
	"strings"
	"testing"
	"time"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// TestAdviceOnARefusedDeletion: it is only given where there may never have been a VM.
func TestAdviceOnARefusedDeletion(t *testing.T) {
	refused := func(code, marker string) given {
		step := map[string]string{messages.Terminating: v1alpha1.StepIdentify, messages.DeleteVM: v1alpha1.StepDeleteInstance}[marker]
		return all(driverFailed(code, step, "no such size", time.Minute),
			deletes(failed, time.Minute, messages.Provider+"machine codes error: code = ["+code+"] message = [providerSpec.size: no such size]. "+marker))
	}
	for name, tc := range map[string]struct {
		given given
		want  bool
	}{
		"before the VM is found":   {all(refused("InvalidArgument", messages.Terminating), unborn), true},
		"the VM cannot be deleted": {all(refused("InvalidArgument", messages.DeleteVM), unborn), true},
		"not allowed":              {all(refused("PermissionDenied", messages.DeleteVM), unborn), true},
		"the provider is away":     {all(refused("Unavailable", messages.DeleteVM), unborn), false},
		"there is a VM":            {refused("InvalidArgument", messages.DeleteVM), false},
	} {
		t.Run(name, func(t *testing.T) {
			advice := strings.Join(Machine(facts(tc.given), now).Advice, "\n")
			for _, way := range []string{
				"MachineClass pool-v1 can be corrected while the machine is being deleted, too",
				`kubectl -n machines patch machines.machine.sapcloud.io pool-a-x7k2p --type=merge -p '{"metadata":{"finalizers":null}}'`,
			} {
				if given := strings.Contains(advice, way); given != tc.want {
					t.Errorf("%q is given: %t\n%s", way, given, advice)
				}
			}
		})
	}
}
