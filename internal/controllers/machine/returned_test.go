package machine

import (
	"testing"
	"time"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/driver/status"
)

// TestDriver_RegistrationTriggersRetry checks that the registration of a driver triggers passes over the Machines that wait
// for it, without the rest of their back-off.
func TestDriver_RegistrationTriggersRetry(t *testing.T) {
	h := newHarness(t)
	away := func() {
		h.Driver.OnStatus(fake.Always[driver.GetMachineStatusRequest, driver.GetMachineStatusResponse](nil, status.Error(codes.Unavailable, "not connected")))
		for range 5 {
			h.SettleAfter(time.Minute)
		}
	}
	returned := func() {
		h.Driver.OnStatus(nil)
		if got := woken(h.controller.driverRegistered(t.Context(), newClass(namespace).Provider)); len(got) != 1 || got[0] != machineName {
			t.Errorf("the registration triggers passes over %v", got)
		}
		h.Settle()
	}

	h.declare()
	away()
	if h.hasVM(machineName) {
		t.Fatal("there is a VM before the driver was registered")
	}
	returned()
	if !h.hasVM(machineName) {
		t.Error("there is no VM after the driver was registered")
	}

	h.join(ready)
	h.Settle()
	if phase := h.machine().Status.CurrentStatus.Phase; phase != v1alpha1.MachineRunning {
		t.Fatalf("phase %q", phase)
	}
	h.delete()
	away()
	if h.gone() {
		t.Fatal("the Machine was removed before the driver was registered")
	}
	returned()
	if !h.gone() {
		t.Error("the Machine was not removed after the driver was registered")
	}
}
