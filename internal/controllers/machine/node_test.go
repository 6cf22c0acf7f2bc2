package machine

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/test/support/lockstep"
)

// TestMachine_NodeIsMarkedInOneWrite checks that one write marks the node as the Machine's, and that it keeps what others set on the
// node.
func TestMachine_NodeIsMarkedInOneWrite(t *testing.T) {
	h := newHarness(t)
	h.declare(inPhase(v1alpha1.MachinePending), func(m *v1alpha1.Machine) {
		m.Spec.NodeTemplateSpec = v1alpha1.NodeTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"pool": "a"}, Annotations: map[string]string{"note": "b"}},
			Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "dedicated", Effect: corev1.TaintEffectNoSchedule}}},
		}
	})
	h.join(notReady)
	change(h, h.node(), func(n *corev1.Node) {
		n.Labels = map[string]string{"user": "label"}
		n.Spec.Taints = []corev1.Taint{{Key: "user", Effect: corev1.TaintEffectNoExecute}}
	})
	h.Settle()
	n := h.node()
	if diff := cmp.Diff([]string{v1alpha1.FinalizerNode}, n.Finalizers); diff != "" {
		t.Errorf("finalizers (-want +got):\n%s", diff)
	}
	labels := map[string]string{"user": "label", "pool": "a", v1alpha1.LabelKeyMachineName: machineName}
	if diff := cmp.Diff(labels, n.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	if len(n.Spec.Taints) != 2 || n.Annotations["note"] != "b" {
		t.Errorf("taints %v, annotations %v", n.Spec.Taints, n.Annotations)
	}
	if got := count(h.TakeWrites(), "patch Node"); got != 1 {
		t.Errorf("%d writes to the node, want 1", got)
	}
}

// TestNodePatch_LocksOnlyTaints checks that only a write that replaces a list, such as the taints, has an optimistic
// lock. Other writes must not fail because of a kubelet's writes.
func TestNodePatch_LocksOnlyTaints(t *testing.T) {
	for name, taints := range map[string][]corev1.Taint{
		"labels only": nil,
		"with taints": {{Key: "dedicated", Effect: corev1.TaintEffectNoSchedule}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.declare(inPhase(v1alpha1.MachinePending), func(m *v1alpha1.Machine) {
				m.Spec.NodeTemplateSpec.Labels = map[string]string{"pool": "a"}
				m.Spec.NodeTemplateSpec.Spec.Taints = taints
			})
			h.join(notReady)
			h.Settle()
			patches := 0
			for _, made := range h.Writes {
				if made.What != "patch Node" {
					continue
				}
				patches++
				if locked := strings.Contains(made.Body, `"resourceVersion"`); locked != (taints != nil) {
					t.Errorf("locked: %v: %s", locked, made.Body)
				}
			}
			if patches != 1 {
				t.Errorf("%d patches of the node, want 1", patches)
			}
		})
	}
}

func count(list []string, what string) int {
	n := 0
	for _, item := range list {
		if item == what {
			n++
		}
	}
	return n
}

// TestMachine_WaitsForRegistrationOfNode checks that a new node is not written to for a moment. The controller does not
// wait until the node is ready, since its taints must keep other Pods off it before that.
func TestMachine_WaitsForRegistrationOfNode(t *testing.T) {
	cases := map[string]struct {
		conditions []corev1.NodeCondition
		phase      v1alpha1.MachinePhase
		waits      bool
	}{
		"no conditions": {nil, v1alpha1.MachinePending, true},
		"not ready":     {[]corev1.NodeCondition{notReady}, v1alpha1.MachinePending, true},
		"ready":         {[]corev1.NodeCondition{ready}, v1alpha1.MachinePending, false},
		"joined before": {[]corev1.NodeCondition{notReady}, v1alpha1.MachineRunning, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.declare(inPhase(tc.phase))
			h.join(tc.conditions...)
			result := h.Pass()
			if waits := len(h.Writes) == 0; waits != tc.waits {
				t.Fatalf("waits = %v, want %v; writes:\n%s", waits, tc.waits, h.LastWrites())
			}
			if !tc.waits {
				return
			}
			if result.RequeueAfter != registrationGrace {
				t.Errorf("the next pass is due in %v, want %v", result.RequeueAfter, registrationGrace)
			}
			h.Clock.Step(registrationGrace)
			h.Pass()
			if len(h.node().Finalizers) != 1 {
				t.Error("the node was not written to after the grace period")
			}
		})
	}
}

// TestMachine_NodeConflictCausesAnotherPass checks that a concurrent change of a node causes another pass but no error.
func TestMachine_NodeConflictCausesAnotherPass(t *testing.T) {
	h := newHarness(t)
	h.declare(inPhase(v1alpha1.MachinePending), func(m *v1alpha1.Machine) {
		m.Spec.NodeTemplateSpec.Spec.Taints = []corev1.Taint{{Key: "dedicated", Effect: corev1.TaintEffectNoSchedule}}
	})
	h.join(notReady)
	h.Pass()
	h.Clock.Step(registrationGrace)
	conflicts := 1
	h.Refuse = func(made lockstep.Write) error {
		if made.What == "patch Node" && conflicts > 0 {
			conflicts--
			h.join(ready)
			return apierrors.NewConflict(schema.GroupResource{Resource: "nodes"}, made.Name, nil)
		}
		return nil
	}
	if result := h.Pass(); result.RequeueAfter <= 0 {
		t.Error("no next pass is scheduled")
	}
	h.Settle()
	if n := h.node(); len(n.Finalizers) != 1 || len(n.Spec.Taints) != 1 {
		t.Errorf("finalizers %v, taints %v", n.Finalizers, n.Spec.Taints)
	}
	wantStatus(t, h.machine(), joinedNow)
}

// TestMachine_DeletedNodeDeletesMachine checks that the deletion of a node deletes its Machine, and that the node remains until the VM
// is gone.
func TestMachine_DeletedNodeDeletesMachine(t *testing.T) {
	h := newHarness(t)
	h.declare()
	h.Settle()
	h.join(ready)
	h.Settle()
	if err := h.target.client.Delete(t.Context(), h.node()); err != nil {
		t.Fatal(err)
	}
	h.Pass()
	if h.machine().DeletionTimestamp.IsZero() {
		t.Fatal("the Machine was not deleted")
	}
	if h.node() == nil {
		t.Fatal("the node was removed before the VM")
	}
	h.Settle()
	if !h.gone() || h.node() != nil || len(h.Driver.VMs()) != 0 {
		t.Error("the deletion is incomplete")
	}
}

// TestMachine_TokenIsRevokedBeforeStatus checks that the token is revoked before the status shows that the node has
// joined, since the status keeps later passes from revoking it.
func TestMachine_TokenIsRevokedBeforeStatus(t *testing.T) {
	h := newHarness(t)
	h.declare()
	h.Settle()
	h.join(notReady)
	h.Refuse = func(made lockstep.Write) error {
		if made.What == "delete Secret" {
			return apierrors.NewInternalError(errDown)
		}
		return nil
	}
	h.Pass()
	h.Clock.Step(registrationGrace)
	if _, err := h.controller.Reconcile(t.Context(), h.Request()); err == nil {
		t.Fatal("a failed revocation caused no error")
	}
	if len(h.machine().Status.Conditions) != 0 || len(h.tokens()) != 1 {
		t.Fatalf("conditions %v, %d tokens", h.machine().Status.Conditions, len(h.tokens()))
	}
	h.Refuse = nil
	h.restart() // the next process has not issued the token
	h.Settle()
	if len(h.tokens()) != 0 {
		t.Error("the token was not revoked")
	}
	if len(h.machine().Status.Conditions) == 0 {
		t.Error("the node's conditions were not copied")
	}
}

// TestMachine_TokenIsKeptWithoutConditions checks that the token remains while the node has no conditions, since its kubelet
// may still be registering.
func TestMachine_TokenIsKeptWithoutConditions(t *testing.T) {
	h := newHarness(t)
	h.declare()
	h.Settle()
	h.join()
	h.Settle()
	if len(h.tokens()) != 1 {
		t.Error("the token was revoked before the kubelet reported conditions")
	}
}

// TestMachine_WaitsForCurrentCache checks that a pass does nothing until the cache contains our last write.
func TestMachine_WaitsForCurrentCache(t *testing.T) {
	h := newHarness(t)
	h.declare()
	stale := h.machine()
	h.Pass() // adds the finalizer
	h.Writes = nil
	h.useClient(staleReader{h.controller.Client, stale})
	if result := h.Pass(); result.RequeueAfter <= 0 {
		t.Error("no next pass is scheduled")
	}
	if len(h.Tasks) != 0 && len(h.Driver.Calls(fake.CreateMachine)) != 0 || len(h.Writes) != 0 {
		t.Errorf("writes based on a stale Machine: %s", h.LastWrites())
	}
}

// staleReader returns an old version of a Machine.
type staleReader struct {
	client.Client
	machine *v1alpha1.Machine
}

func (r staleReader) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	if machine, ok := object.(*v1alpha1.Machine); ok {
		r.machine.DeepCopyInto(machine)
		return nil
	}
	return r.Client.Get(ctx, key, object, options...)
}

// TestMachine_NodeLabelIsRestored checks that a Machine gets back its node label, so that a healthy VM is not replaced.
func TestMachine_NodeLabelIsRestored(t *testing.T) {
	h := newHarness(t)
	h.running()
	change(h, h.machine(), func(m *v1alpha1.Machine) { delete(m.Labels, v1alpha1.NodeLabelKey) })
	h.wait(time.Hour)
	if got := h.machine(); got.Status.CurrentStatus.Phase != v1alpha1.MachineRunning || got.Labels[v1alpha1.NodeLabelKey] != h.nodeName() {
		t.Errorf("phase %q, labels %v", got.Status.CurrentStatus.Phase, got.Labels)
	}
	if events := h.takeEvents(); len(events) != 0 {
		t.Errorf("events %q", events)
	}
}
