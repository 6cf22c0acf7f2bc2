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

// life creates the Machine, waits until it is Running, and deletes it, with passes that may fail. It checks the
// state after each stage.
func (h *harness) life() {
	h.Helper()
	h.declare(func(m *v1alpha1.Machine) {
		m.Spec.NodeTemplateSpec.Labels = map[string]string{"pool": "a"}
		m.Spec.NodeTemplateSpec.Spec.Taints = []corev1.Taint{{Key: "dedicated", Effect: corev1.TaintEffectNoSchedule}}
	})
	h.wait(time.Minute)
	if got := h.machine(); got.Status.CurrentStatus.Phase != v1alpha1.MachinePending || got.Spec.ProviderID == "" {
		h.Fatalf("after the creation: phase %q, VM %q", got.Status.CurrentStatus.Phase, got.Spec.ProviderID)
	}
	h.join(ready)
	h.wait(time.Minute)
	if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineRunning || len(h.tokens()) != 0 {
		h.Fatalf("after the node joined: phase %q, %d tokens", got, len(h.tokens()))
	}
	h.delete()
	h.wait(time.Minute)
	if !h.gone() || h.node() != nil || len(h.Driver.VMs()) != 0 || len(h.tokens()) != 0 {
		h.Fatalf("after the deletion: deleted %v, VMs %v, %d tokens", h.gone(), h.Driver.VMs(), len(h.tokens()))
	}
}

// TestMachine_AnyWriteMayFail checks that if the API server refuses any one write, the Machine nevertheless gets exactly
// one VM, joins, and is deleted completely. The tests in test/suites/crash cover processes that terminate and
// responses that are lost.
func TestMachine_AnyWriteMayFail(t *testing.T) {
	whole := newHarness(t)
	whole.draining()
	whole.life()
	if len(whole.Writes) < 12 {
		t.Fatalf("only %d writes without a refusal: %s", len(whole.Writes), whole.LastWrites())
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
				t.Errorf("%d writes, want no fewer than without a refusal", writes)
			}
			if got := len(h.Driver.Calls(fake.CreateMachine)); got != 1 {
				t.Errorf("%d creations", got)
			}
		})
	}
}

// TestMachine_InvalidTimeouts checks that no timeouts of a Machine cause a crash or a busy loop, and that the Machine
// can be deleted.
func TestMachine_InvalidTimeouts(t *testing.T) {
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
		// is is the phase without a node. With a node, the Machine becomes Running.
		is v1alpha1.MachinePhase
		// drain and retries are the expected values in the drain request.
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
				t.Errorf("phase %q with a healthy node", got)
			}
			d := h.draining()
			h.delete()
			h.wait(time.Minute)
			if !h.gone() || len(d.requests) == 0 {
				t.Fatalf("deleted: %v, %d drains", h.gone(), len(d.requests))
			}
			if got := d.requests[0]; got.Timeout != tc.drain || got.MaxEvictRetries != tc.retries {
				t.Errorf("drain timeout %v, %d retries; want %v, %d", got.Timeout, got.MaxEvictRetries, tc.drain, tc.retries)
			}
		})
	}
}
