package capi

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/fake"
)

// TestOtherInstallation: what another installation has begun is left alone, whether it is
// there or goes, and that is said once.
func TestOtherInstallation(t *testing.T) {
	for name, before := range map[string]func(*harness){
		"has a VM": func(h *harness) { h.Settle() },
		"begun": func(h *harness) {
			h.Driver.FailAfter(fake.CreateMachine, codes.DeadlineExceeded)
			h.Pass()
			h.Pass()
			h.Call()
		},
		"is being deleted": func(h *harness) { h.Settle(); h.delete() },
		"has moved": func(h *harness) {
			h.Settle()
			h.changeInfra(func(m *infrav1.MillwrightMachine) { m.Status = infrav1.MillwrightMachineStatus{} })
			moved := h.infra()
			moved.Status = infrav1.MillwrightMachineStatus{}
			if err := h.client.Status().Update(h.Context(), moved); err != nil {
				h.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.controller.Installation = "a"
			before(h)
			if got := h.infra().Annotations[infrav1.AnnotationInstallation]; got != "a" {
				t.Fatalf("installation %q", got)
			}
			calls, vms := len(h.calls()), len(h.Driver.VMs())
			h.restart()
			h.controller.Installation, h.Writes = "b", nil
			h.Settle()
			h.SettleAfter(time.Hour)
			told := h.takeEvents()
			if len(h.calls()) != calls || len(h.Driver.VMs()) != vms || len(told) != 1 {
				t.Errorf("calls %v, VMs %v, events %q", h.calls()[calls:], h.Driver.VMs(), told)
			}
			if name == "has moved" {
				h.wantReady(metav1.ConditionFalse, infrav1.ReasonOtherInstallation, `"a"`, `"b"`)
			} else if len(h.Writes) != 0 {
				t.Errorf("writes %v: whose it is writes, too", h.Writes)
			}
			h.goesOn(name == "is being deleted")
		})
	}
}

// goesOn starts a manager of the installation a, which has its way with the one VM.
func (h *harness) goesOn(deleting bool) {
	h.Helper()
	h.restart()
	h.controller.Installation = "a"
	h.Settle()
	switch {
	case !deleting:
		h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
	case !h.gone() || len(h.Driver.VMs()) != 0:
		h.Errorf("gone %t, VMs %v", h.gone(), h.Driver.VMs())
	}
	if h.made != 1 {
		h.Errorf("%d VMs were made", h.made)
	}
}
