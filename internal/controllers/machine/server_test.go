package machine

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// TestLifeOnAServer: the way from declaration to deletion with a real API server, which
// has versions, generations and subresources as they are in life.
func TestLifeOnAServer(t *testing.T) {
	w := newServerWorld(t)
	w.driver.fails(instance.MethodCreate, codes.ResourceExhausted)
	w.declare(func(m *v1alpha1.Machine) {
		m.Finalizers = []string{v1alpha1.FinalizerLegacy, "example.com/backup"}
		m.Spec.NodeTemplateSpec.Labels = map[string]string{"pool": "a"}
	})
	w.settle()
	if got := w.machine().Status.LastOperation.ErrorCode; got != "ResourceExhausted" {
		t.Fatalf("error code %q", got)
	}
	w.settleAfter(time.Hour / 4)
	w.join(notReady)
	w.settle()
	w.join(ready)
	w.settle()
	got := w.machine()
	wantStatus(t, got, joinedNow)
	if got.Status.LastOperation.ErrorCode != "" {
		t.Errorf("the error code %q outlives its error", got.Status.LastOperation.ErrorCode)
	}
	if n := w.node(); n.Labels["pool"] != "a" || len(n.Finalizers) != 1 || len(w.tokens()) != 0 {
		t.Errorf("node: labels %v, finalizers %v; %d tokens", n.Labels, n.Finalizers, len(w.tokens()))
	}
	w.writes = nil
	w.settle()
	if len(w.writes) != 0 {
		t.Errorf("writes without a change:\n%s", w.said())
	}

	w.delete()
	w.settle()
	if diff := cmp.Diff([]string{"example.com/backup"}, w.machine().Finalizers); diff != "" {
		t.Errorf("finalizers (-want +got):\n%s", diff)
	}
	wantStatus(t, w.machine(), want4{v1alpha1.MachineTerminating, v1alpha1.MachineOperationDelete, v1alpha1.MachineStateProcessing, messages.Terminating})
	if w.node() != nil || len(w.driver.vms) != 0 {
		t.Error("node or VM are left")
	}
	change(w, w.machine(), func(m *v1alpha1.Machine) { m.Finalizers = nil })
	w.pass()
	if !w.gone() {
		t.Error("the Machine stays")
	}
}

// TestSomebodyElseWasFirst: what others write between our reading and our writing is
// never undone, and costs another pass.
func TestSomebodyElseWasFirst(t *testing.T) {
	for _, ours := range []string{"patch Machine", "patch status of Machine"} {
		t.Run(ours, func(t *testing.T) {
			w := newServerWorld(t)
			w.declare()
			w.pass()
			w.call()
			interfered := false
			w.refuse = func(made write) error {
				if made.what == ours && !interfered {
					interfered = true
					change(w, w.machine(), func(m *v1alpha1.Machine) {
						metav1.SetMetaDataAnnotation(&m.ObjectMeta, v1alpha1.AnnotationKeyMachinePriority, "1")
					})
				}
				return nil
			}
			w.settle()
			if !interfered {
				t.Fatalf("nobody wrote %q", ours)
			}
			if result := w.pass(); result.RequeueAfter <= 0 {
				t.Error("nothing brings the next pass")
			}
			w.settle()
			got := w.machine()
			if got.Annotations[v1alpha1.AnnotationKeyMachinePriority] != "1" {
				t.Errorf("the user's priority was overwritten with %q", got.Annotations[v1alpha1.AnnotationKeyMachinePriority])
			}
			if got.Spec.ProviderID == "" || got.Status.CurrentStatus.Phase != v1alpha1.MachinePending {
				t.Errorf("providerID %q, phase %q", got.Spec.ProviderID, got.Status.CurrentStatus.Phase)
			}
			if n := w.driver.made(instance.MethodCreate); n != 1 {
				t.Errorf("%d creations, want 1", n)
			}
		})
	}
}

// TestNameIsUsedAgain: a new Machine is not taken for the one of its name that is gone,
// although no pass has seen that that one is.
func TestNameIsUsedAgain(t *testing.T) {
	w := newServerWorld(t)
	w.declare()
	w.settle()
	w.delete()
	for range 10 {
		if w.gone() {
			break
		}
		w.pass()
		w.call()
	}
	w.declare()
	w.settle()
	if got := w.machine(); !slices.Contains(got.Finalizers, v1alpha1.FinalizerMCM) || got.Status.CurrentStatus.Phase != v1alpha1.MachinePending {
		t.Errorf("finalizers %v, phase %q", got.Finalizers, got.Status.CurrentStatus.Phase)
	}
	if n := w.driver.made(instance.MethodCreate); n != 2 {
		t.Errorf("%d creations, want 2", n)
	}
}
