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

// TestLifeOnAServer: the way from declaration to deletion with a real API server, which
// has versions, generations and subresources as they are in life.
func TestLifeOnAServer(t *testing.T) {
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
		t.Errorf("the error code %q outlives its error", got.Status.LastOperation.ErrorCode)
	}
	if n := h.node(); n.Labels["pool"] != "a" || len(n.Finalizers) != 1 || len(h.tokens()) != 0 {
		t.Errorf("node: labels %v, finalizers %v; %d tokens", n.Labels, n.Finalizers, len(h.tokens()))
	}
	h.Writes = nil
	h.Settle()
	if len(h.Writes) != 0 {
		t.Errorf("writes without a change:\n%s", h.LastWrites())
	}

	h.delete()
	h.Settle()
	if diff := cmp.Diff([]string{"example.com/backup"}, h.machine().Finalizers); diff != "" {
		t.Errorf("finalizers (-want +got):\n%s", diff)
	}
	wantStatus(t, h.machine(), want4{v1alpha1.MachineTerminating, v1alpha1.MachineOperationDelete, v1alpha1.MachineStateProcessing, messages.Terminating})
	if h.node() != nil || len(h.Driver.VMs()) != 0 {
		t.Error("node or VM are left")
	}
	change(h, h.machine(), func(m *v1alpha1.Machine) { m.Finalizers = nil })
	h.Pass()
	if !h.gone() {
		t.Error("the Machine stays")
	}
}

// TestSomebodyElseWasFirst: what others write between our reading and our writing is
// never undone, and costs another pass.
func TestSomebodyElseWasFirst(t *testing.T) {
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
				t.Fatalf("nobody wrote %q", ours)
			}
			if result := h.Pass(); result.RequeueAfter <= 0 {
				t.Error("nothing brings the next pass")
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

// TestNameIsUsedAgain: a new Machine is not taken for the one of its name that is gone,
// although no pass has seen that that one is.
func TestNameIsUsedAgain(t *testing.T) {
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
