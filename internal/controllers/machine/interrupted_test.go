package machine

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
)

// life takes the Machine from its declaration to its end, with passes that may fail, and
// checks what has to be true in between.
func (w *world) life() {
	w.Helper()
	w.declare(func(m *v1alpha1.Machine) {
		m.Spec.NodeTemplateSpec.Labels = map[string]string{"pool": "a"}
		m.Spec.NodeTemplateSpec.Spec.Taints = []corev1.Taint{{Key: "dedicated", Effect: corev1.TaintEffectNoSchedule}}
	})
	w.wait(time.Minute)
	if got := w.machine(); got.Status.CurrentStatus.Phase != v1alpha1.MachinePending || got.Spec.ProviderID == "" {
		w.Fatalf("phase %q, VM %q after the creation", got.Status.CurrentStatus.Phase, got.Spec.ProviderID)
	}
	w.join(ready)
	w.wait(time.Minute)
	if got := w.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineRunning || len(w.tokens()) != 0 {
		w.Fatalf("phase %q and %d tokens after the node has joined", got, len(w.tokens()))
	}
	w.delete()
	w.wait(time.Minute)
	if !w.gone() || w.node() != nil || len(w.driver.vms) != 0 || len(w.tokens()) != 0 {
		w.Fatalf("after the deletion: gone %v, VMs %v, %d tokens", w.gone(), w.driver.vms, len(w.tokens()))
	}
}

// TestEveryWriteMayFail: whichever write of a Machine's life the API server refuses, the
// Machine gets its VM, one, joins, and leaves nothing behind. What becomes of processes that
// end in between, and of answers that are lost, is explored in test/crash.
func TestEveryWriteMayFail(t *testing.T) {
	whole := newWorld(t)
	whole.draining()
	whole.life()
	if len(whole.writes) < 12 {
		t.Fatalf("a life of %d writes, want a whole one: %s", len(whole.writes), whole.said())
	}
	for at := range whole.writes {
		t.Run(fmt.Sprintf("%d, %s", at, whole.writes[at].what), func(t *testing.T) {
			w := newWorld(t)
			w.draining()
			writes := 0
			w.refuse = func(write) error {
				if writes++; writes == at+1 {
					return errDown
				}
				return nil
			}
			w.life()
			if writes <= len(whole.writes)-1 {
				t.Errorf("%d writes, fewer than without a refusal", writes)
			}
			if got := w.driver.made(instance.MethodCreate); got != 1 {
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
			w := newWorld(t)
			w.driver.vms[machineName] = "sim:///m1"
			w.declare(inPhase(v1alpha1.MachinePending), func(m *v1alpha1.Machine) { m.Spec.MachineConfiguration = tc.config })
			w.wait(10 * time.Minute)
			if got := w.machine().Status.CurrentStatus.Phase; got != tc.is {
				t.Errorf("phase %q without a node, want %q", got, tc.is)
			}
			w.join(ready)
			w.wait(10 * time.Minute)
			if got := w.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineRunning {
				t.Errorf("phase %q with a node that is well", got)
			}
			d := w.draining()
			w.delete()
			w.wait(time.Minute)
			if !w.gone() || len(d.requests) == 0 {
				t.Fatalf("gone: %v, %d drains", w.gone(), len(d.requests))
			}
			if got := d.requests[0]; got.Timeout != tc.drain || got.MaxEvictRetries != tc.retries {
				t.Errorf("drain timeout %v, %d retries; want %v, %d", got.Timeout, got.MaxEvictRetries, tc.drain, tc.retries)
			}
		})
	}
}
