package machine

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// TestDurationsAreForPeople: whole minutes are written as MCM does, other times as people do.
func TestDurationsAreForPeople(t *testing.T) {
	for timeout, want := range map[time.Duration]string{
		4 * time.Second:  "Machine m1 failed to join the cluster in 4s.",
		90 * time.Second: "Machine m1 failed to join the cluster in 1m30s.",
		time.Hour:        "Machine m1 failed to join the cluster in 60 minutes.",
	} {
		h := newHarness(t)
		h.declare(func(m *v1alpha1.Machine) {
			m.Spec.MachineConfiguration = &v1alpha1.MachineConfiguration{MachineCreationTimeout: &metav1.Duration{Duration: timeout}}
		})
		h.Settle()
		h.SettleAfter(timeout)
		if got := h.machine().Status.LastOperation.Description; got != want {
			t.Errorf("after %v: %q, want %q", timeout, got, want)
		}
	}
	h := newHarness(t)
	h.declare()
	h.Settle()
	h.Clock.Step(2337045191)
	h.join(ready)
	h.Settle()
	if got, want := h.machine().Status.LastOperation.Description, "Machine m1 successfully joined the cluster in 2.3s"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
