package machine

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
	"github.com/millwright-dev/millwright/test/support/lockstep"
)

// TestMachine_LifecycleOnServer covers a Machine from its creation to its deletion with a real API server, which has resource
// versions, generations and subresources.
func TestMachine_LifecycleOnServer(t *testing.T) {
	h := newServerHarness(t)
	h.Driver.Fail(fake.CreateMachine, codes.ResourceExhausted)
	h.declare(func(m *v1alpha1.Machine) {
		m.Finalizers = []string{v1alpha1.FinalizerLegacy, "example.com/backup"}
		m.Spec.NodeTemplateSpec.Labels = map[string]string{"pool": "a"}
	})
	h.Settle()
	if got := h.machine().Status.LastOperation.ErrorCode; got != "ResourceExhausted" {
		t.Fatalf("error code %q", got)
	}
	h.SettleAfter(time.Hour / 4)
	h.join(notReady)
	h.Settle()
	h.join(ready)
	h.Settle()
	got := h.machine()
	wantStatus(t, got, joinedNow)
	if got.Status.LastOperation.ErrorCode != "" {
		t.Errorf("the error code %q remains after the success", got.Status.LastOperation.ErrorCode)
	}
	if n := h.node(); n.Labels["pool"] != "a" || len(n.Finalizers) != 1 || len(h.tokens()) != 0 {
		t.Errorf("node: labels %v, finalizers %v; %d tokens", n.Labels, n.Finalizers, len(h.tokens()))
	}
	h.Writes = nil
	h.Settle()
	if len(h.Writes) != 0 {
		t.Errorf("unexpected writes:\n%s", h.LastWrites())
	}

	h.delete()
	h.Settle()
	if diff := cmp.Diff([]string{"example.com/backup"}, h.machine().Finalizers); diff != "" {
		t.Errorf("finalizers (-want +got):\n%s", diff)
	}
	wantStatus(t, h.machine(), statusFields{v1alpha1.MachineTerminating, v1alpha1.MachineOperationDelete, v1alpha1.MachineStateProcessing, messages.Terminating})
	if h.node() != nil || len(h.Driver.VMs()) != 0 {
		t.Error("the node or the VM was not deleted")
	}
	change(h, h.machine(), func(m *v1alpha1.Machine) { m.Finalizers = nil })
	h.Pass()
	if !h.gone() {
		t.Error("the Machine was not removed")
	}
}

// TestMachine_KeepsWrites checks that a concurrent write by another client is not undone and causes another pass.
func TestMachine_KeepsWrites(t *testing.T) {
	for _, ours := range []string{"patch Machine", "patch status of Machine"} {
		t.Run(ours, func(t *testing.T) {
			h := newServerHarness(t)
			h.declare()
			h.Pass()
			h.Call()
			interfered := false
			h.Refuse = func(made lockstep.Write) error {
				if made.What == ours && !interfered {
					interfered = true
					change(h, h.machine(), func(m *v1alpha1.Machine) {
						metav1.SetMetaDataAnnotation(&m.ObjectMeta, v1alpha1.AnnotationKeyMachinePriority, "1")
					})
				}
				return nil
			}
			h.Settle()
			if !interfered {
				t.Fatalf("the write %q did not happen", ours)
			}
			if result := h.Pass(); result.RequeueAfter <= 0 {
				t.Error("no next pass is scheduled")
			}
			h.Settle()
			got := h.machine()
			if got.Annotations[v1alpha1.AnnotationKeyMachinePriority] != "1" {
				t.Errorf("the user's priority was overwritten with %q", got.Annotations[v1alpha1.AnnotationKeyMachinePriority])
			}
			if got.Spec.ProviderID == "" || got.Status.CurrentStatus.Phase != v1alpha1.MachinePending {
				t.Errorf("providerID %q, phase %q", got.Spec.ProviderID, got.Status.CurrentStatus.Phase)
			}
			if n := len(h.Driver.Calls(fake.CreateMachine)); n != 1 {
				t.Errorf("%d creations, want 1", n)
			}
		})
	}
}

// TestMachine_NameCanBeReused checks that a new Machine is not confused with a deleted Machine of the same name whose
// deletion no pass has seen.
func TestMachine_NameCanBeReused(t *testing.T) {
	h := newServerHarness(t)
	h.declare()
	h.Settle()
	h.delete()
	for range 10 {
		if h.gone() {
			break
		}
		h.Pass()
		h.Call()
	}
	h.declare()
	h.Settle()
	if got := h.machine(); !slices.Contains(got.Finalizers, v1alpha1.FinalizerMCM) || got.Status.CurrentStatus.Phase != v1alpha1.MachinePending {
		t.Errorf("finalizers %v, phase %q", got.Finalizers, got.Status.CurrentStatus.Phase)
	}
	if n := len(h.Driver.Calls(fake.CreateMachine)); n != 2 {
		t.Errorf("%d creations, want 2", n)
	}
}
