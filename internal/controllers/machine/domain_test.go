package machine

import (
	"context"
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
)

// TestMachine_FailureDomainIsRecorded checks that the failure domain that the driver returns is stored in the same write as
// the provider ID, and that an invalid name is ignored.
func TestMachine_FailureDomainIsRecorded(t *testing.T) {
	for domain, want := range map[string]string{"": "", "rack-7": "rack-7", "a\x1b[2Jb": "", strings.Repeat("z", 300): ""} {
		h := newHarness(t)
		h.Driver.OnCreate(func(_ context.Context, _ *driver.CreateMachineRequest, do func() (*driver.CreateMachineResponse, error)) (*driver.CreateMachineResponse, error) {
			resp, err := do()
			if resp != nil {
				resp.FailureDomain = domain
			}
			return resp, err
		})
		h.declare()
		h.Settle()
		machine := h.machine()
		if got := machine.Annotations[v1alpha1.AnnotationKeyFailureDomain]; got != want || machine.Spec.ProviderID == "" {
			t.Errorf("failure domain %.20q: the machine with ID %q has %q, want %q", domain, machine.Spec.ProviderID, got, want)
		}
	}
}
