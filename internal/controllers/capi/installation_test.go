package capi

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
)

// TestOtherInstallation: what another installation has begun is left alone, whether it is
// there or goes, and that is said once.
func TestOtherInstallation(t *testing.T) {
	for name, before := range map[string]func(*world){
		"has a VM":         func(w *world) { w.settle() },
		"begun":            func(w *world) { w.driver.lost = true; w.pass(); w.pass(); w.call() },
		"is being deleted": func(w *world) { w.settle(); w.delete() },
		"has moved": func(w *world) {
			w.settle()
			w.changeInfra(func(m *infrav1.MillwrightMachine) { m.Status = infrav1.MillwrightMachineStatus{} })
			moved := w.infra()
			moved.Status = infrav1.MillwrightMachineStatus{}
			if err := w.client.Status().Update(w.Context(), moved); err != nil {
				w.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.controller.Installation = "a"
			before(w)
			if got := w.infra().Annotations[infrav1.AnnotationInstallation]; got != "a" {
				t.Fatalf("installation %q", got)
			}
			calls, vms := len(w.driver.calls), len(w.driver.vms)
			w.restart()
			w.controller.Installation, w.writes = "b", nil
			w.settle()
			w.settleAfter(time.Hour)
			told := w.told()
			if len(w.driver.calls) != calls || len(w.driver.vms) != vms || len(told) != 1 {
				t.Errorf("calls %v, VMs %v, events %q", w.driver.calls[calls:], w.driver.vms, told)
			}
			if name == "has moved" {
				w.wantReady(metav1.ConditionFalse, infrav1.ReasonOtherInstallation, `"a"`, `"b"`)
			} else if len(w.writes) != 0 {
				t.Errorf("writes %v: whose it is writes, too", w.writes)
			}
			w.goesOn(name == "is being deleted")
		})
	}
}

// goesOn starts a manager of the installation a, which has its way with the one VM.
func (w *world) goesOn(deleting bool) {
	w.Helper()
	w.restart()
	w.controller.Installation = "a"
	w.settle()
	switch {
	case !deleting:
		w.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
	case !w.gone() || len(w.driver.vms) != 0:
		w.Errorf("gone %t, VMs %v", w.gone(), w.driver.vms)
	}
	if w.driver.count != 1 {
		w.Errorf("%d VMs were made", w.driver.count)
	}
}
