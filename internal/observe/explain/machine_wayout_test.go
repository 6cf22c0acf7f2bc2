package explain

import (
	"strings"
	"testing"
	"time"

	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// TestWaysOutOfARefusedDeletion: they are only told where there may never have been a VM.
func TestWaysOutOfARefusedDeletion(t *testing.T) {
	refused := func(code, marker string) given {
		return deletes(failed, time.Minute, messages.Provider+"machine codes error: code = ["+code+"] message = [providerSpec.size: no such size]. "+marker)
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
			advice := strings.Join(Explain(facts(tc.given), now).Advice, "\n")
			for _, way := range []string{
				"MachineClass pool-v1 can be corrected while the machine is being deleted, too",
				`kubectl -n machines patch machines.machine.sapcloud.io pool-a-x7k2p --type=merge -p '{"metadata":{"finalizers":null}}'`,
			} {
				if told := strings.Contains(advice, way); told != tc.want {
					t.Errorf("%q is told: %t\n%s", way, told, advice)
				}
			}
		})
	}
}
