package machine

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/test/support/lockstep"
)

// life takes the Machine from its declaration to its end, with passes that may fail, and
// checks what has to be true in between.
func (h *harness) life() {
	h.Helper()
	h.declare(func(m *v1alpha1.Machine) {
		m.Spec.NodeTemplateSpec.Labels = map[string]string{"pool": "a"}
		m.Spec.NodeTemplateSpec.Spec.Taints = []corev1.Taint{{Key: "dedicated", Effect: corev1.TaintEffectNoSchedule}}
	})
	h.wait(time.Minute)
	if got := h.machine(); got.Status.CurrentStatus.Phase != v1alpha1.MachinePending || got.Spec.ProviderID == "" {
		h.Fatalf("phase %q, VM %q after the creation", got.Status.CurrentStatus.Phase, got.Spec.ProviderID)
	}
	h.join(ready)
	h.wait(time.Minute)
	if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineRunning || len(h.tokens()) != 0 {
		h.Fatalf("phase %q and %d tokens after the node has joined", got, len(h.tokens()))
	}
	h.delete()
	h.wait(time.Minute)
	if !h.gone() || h.node() != nil || len(h.Driver.VMs()) != 0 || len(h.tokens()) != 0 {
		h.Fatalf("after the deletion: gone %v, VMs %v, %d tokens", h.gone(), h.Driver.VMs(), len(h.tokens()))
	}
}

// TestEveryWriteMayFail: whichever write of a Machine's life the API server refuses, the
// Machine gets its VM, one, joins, and leaves nothing behind. What becomes of processes that
// end in between, and of answers that are lost, is explored in test/suites/crash.
func TestEveryWriteMayFail(t *testing.T) {
	whole := newHarness(t)
	whole.draining()
	whole.life()
	if len(whole.Writes) < 12 {
		t.Fatalf("a life of %d writes, want a whole one: %s", len(whole.Writes), whole.LastWrites())
	}
	for at := range whole.Writes {
		t.Run(fmt.Sprintf("%d, %s", at, whole.Writes[at].What), func(t *testing.T) {
			h := newHarness(t)
			h.draining()
			writes := 0
			h.Refuse = func(lockstep.Write) error {
				if writes++; writes == at+1 {
					return errDown
				}
				return nil
			}
			h.life()
			if writes <= len(whole.Writes)-1 {
				t.Errorf("%d writes, fewer than without a refusal", writes)
			}
			if got := len(h.Driver.Calls(fake.CreateMachine)); got != 1 {
				t.Errorf("%d creations", got)
			}
		})
	}
}

// TestAbsurdConfigurations: whatever a Machine says about its timeouts, nothing crashes,
// nothing is looked at without end, and it can be deleted.
func TestAbsurdConfigurations(t *testing.T) {
	const (
		longest  = time.Duration(1<<63 - 1)
		shortest = time.Duration(-1 << 63)
	)
	all := func(d time.Duration, retries int32) *v1alpha1.MachineConfiguration {
		of := func() *metav1.Duration { return &metav1.Duration{Duration: d} }
		return &v1alpha1.MachineConfiguration{
			MachineDrainTimeout: of(), MachineHealthTimeout: of(), MachineCreationTimeout: of(),
			MachineInPlaceUpdateTimeout: of(), MachinePreserveTimeout: of(), MaxEvictRetries: &retries,
		}
	}
	cases := map[string]struct {
		config *v1alpha1.MachineConfiguration
		// is what the Machine comes to without a node; with one it is Running.
		is v1alpha1.MachinePhase
		// drain and retries are what a drain is asked for.
		drain   time.Duration
		retries int32
	}{
		"longest":  {all(longest, 1<<31-1), v1alpha1.MachinePending, longest, 1<<31 - 1},
		"zero":     {all(0, 0), v1alpha1.MachineFailed, 0, 0},
		"shortest": {all(shortest, -1<<31), v1alpha1.MachinePending, DefaultDrainTimeout, DefaultMaxEvictRetries},
		"a moment": {all(1, 1), v1alpha1.MachineFailed, 1, 1},
		"nonsense": {&v1alpha1.MachineConfiguration{NodeConditions: ptr.To(",,no such condition,")}, v1alpha1.MachinePending, DefaultDrainTimeout, DefaultMaxEvictRetries},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.addVM(machineName, "sim:///m1")
			h.declare(inPhase(v1alpha1.MachinePending), func(m *v1alpha1.Machine) { m.Spec.MachineConfiguration = tc.config })
			h.wait(10 * time.Minute)
			if got := h.machine().Status.CurrentStatus.Phase; got != tc.is {
				t.Errorf("phase %q without a node, want %q", got, tc.is)
			}
			h.join(ready)
			h.wait(10 * time.Minute)
			if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineRunning {
				t.Errorf("phase %q with a node that is well", got)
			}
			d := h.draining()
			h.delete()
			h.wait(time.Minute)
			if !h.gone() || len(d.requests) == 0 {
				t.Fatalf("gone: %v, %d drains", h.gone(), len(d.requests))
			}
			if got := d.requests[0]; got.Timeout != tc.drain || got.MaxEvictRetries != tc.retries {
				t.Errorf("drain timeout %v, %d retries; want %v, %d", got.Timeout, got.MaxEvictRetries, tc.drain, tc.retries)
			}
		})
	}
}
