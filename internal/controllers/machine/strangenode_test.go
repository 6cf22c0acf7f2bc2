package machine

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/fake"
)

// namedLikeMachine makes VMs join with the names of their Machines, as most providers do.
func (h *harness) namedLikeMachine() {
	h.Driver.Configure(func(config *fake.Config) {
		config.NodeName = func(machine *v1alpha1.Machine) string { return machine.Name }
	})
}

// stranger creates a node that is older than the Machine.
func (h *harness) stranger(name string, changes ...func(*corev1.Node)) {
	h.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: "stranger", CreationTimestamp: metav1.NewTime(h.Clock.Now().Add(-time.Hour)),
	}}
	node.Spec.ProviderID = "metal:///rack-1"
	node.Status.Conditions = []corev1.NodeCondition{ready}
	for _, change := range changes {
		change(node)
	}
	if err := h.target.client.Create(h.Context(), node); err != nil {
		h.Fatal(err)
	}
}

func (h *harness) strangerUntouched(name string) {
	h.Helper()
	node := &corev1.Node{}
	if err := h.target.client.Get(h.Context(), client.ObjectKey{Name: name}, node); err != nil {
		h.Fatalf("the node: %v", err)
	}
	if node.Spec.Unschedulable || len(node.Finalizers) > 0 || node.Labels[v1alpha1.LabelKeyMachineName] != "" {
		h.Errorf("the node was changed: unschedulable %v, finalizers %q, labels %q", node.Spec.Unschedulable, node.Finalizers, node.Labels)
	}
}

// TestMachine_DoesNotAdoptOlderNode checks that a Machine does not adopt or drain an older node that has its name or that its label
// names.
func TestMachine_DoesNotAdoptOlderNode(t *testing.T) {
	for name, declared := range map[string]func(*v1alpha1.Machine){
		"the Machine has its name":           func(*v1alpha1.Machine) {},
		"a user wrote its name on a Machine": func(m *v1alpha1.Machine) { m.Labels = map[string]string{v1alpha1.NodeLabelKey: machineName} },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.namedLikeMachine()
			h.stranger(machineName)
			h.declare(declared)
			h.Settle()
			if phase := h.machine().Status.CurrentStatus.Phase; phase == v1alpha1.MachineRunning {
				t.Error("the Machine adopted the node")
			}
			h.strangerUntouched(machineName)
			h.delete()
			h.Settle()
			h.strangerUntouched(machineName)
			if !h.gone() || len(h.Driver.VMs()) > 0 {
				t.Errorf("deleted: %v; %d VMs remain", h.gone(), len(h.Driver.VMs()))
			}
		})
	}
}

// TestMachine_AdoptsNode checks that a node without a provider ID, or with an ID in another format, joins if it is
// younger than the Machine. An older node joins if it is the Machine's own, as after a restore.
func TestMachine_AdoptsNode(t *testing.T) {
	hour := func(n *corev1.Node) *metav1.Time { return &n.CreationTimestamp }
	for name, test := range map[string]struct {
		node func(*corev1.Node)
		want v1alpha1.MachinePhase
	}{
		"its cloud has not set the ID yet": {func(n *corev1.Node) { n.Spec.ProviderID = "" }, v1alpha1.MachineRunning},
		"the ID has another form":          {func(*corev1.Node) {}, v1alpha1.MachineRunning},
		"older, with the ID": {func(n *corev1.Node) {
			n.Spec.ProviderID = "sim:///" + machineName
			hour(n).Time = hour(n).Add(-24 * time.Hour)
		}, v1alpha1.MachineRunning},
		"older, with the label": {func(n *corev1.Node) {
			n.Labels = map[string]string{v1alpha1.LabelKeyMachineName: machineName}
			hour(n).Time = hour(n).Add(-24 * time.Hour)
		}, v1alpha1.MachineRunning},
		"of Cluster API": {func(n *corev1.Node) {
			n.Annotations = map[string]string{"cluster.x-k8s.io/machine": "cp-0"}
		}, v1alpha1.MachinePending},
		"of a Machine that is not here": {func(n *corev1.Node) {
			n.Labels = map[string]string{v1alpha1.LabelKeyMachineName: "m2"}
		}, v1alpha1.MachinePending},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.addVM(machineName, "sim:///"+machineName)
			h.declare(inPhase(v1alpha1.MachinePending))
			h.stranger(h.nodeName(), func(n *corev1.Node) {
				n.CreationTimestamp = metav1.NewTime(h.Clock.Now())
				test.node(n)
			})
			h.Settle()
			if got := h.machine().Status.CurrentStatus.Phase; got != test.want {
				t.Errorf("phase %q, want %q: %q", got, test.want, h.takeEvents())
			}
		})
	}
}

// lagging is a cache that returns an old version of a node, or no node.
type lagging struct {
	client.Client
	shown *corev1.Node
}

func (l lagging) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	node, ok := object.(*corev1.Node)
	switch {
	case !ok:
		return l.Client.Get(ctx, key, object, options...)
	case l.shown == nil:
		return apierrors.NewNotFound(corev1.Resource("nodes"), key.Name)
	}
	l.shown.DeepCopyInto(node)
	return nil
}

// TestMachine_DeletesOnlyOwnNode checks that only the Machine's own node is deleted, even if the cache lags behind.
func TestMachine_DeletesOnlyOwnNode(t *testing.T) {
	for name, test := range map[string]struct {
		shown, strange, stays bool
	}{
		"joined late":   {},
		"strange, late": {strange: true, stays: true},
		"replaced":      {shown: true, stays: true},
	} {
		t.Run(name, func(t *testing.T) {
			h := newServerHarness(t)
			h.declare()
			h.Settle()
			cache := lagging{Client: h.controller.Target.Client()}
			if test.shown {
				h.join(ready)
				h.Settle()
				cache.shown = h.node()
				h.dropNode()
			}
			h.join(ready)
			if test.strange {
				change(h, h.node(), func(n *corev1.Node) {
					n.Annotations = map[string]string{"cluster.x-k8s.io/machine": "cp-0"}
				})
			}
			t.Cleanup(func() {
				left := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: h.nodeName()}}
				_ = h.target.client.Delete(context.Background(), left) // the node may not exist
			})
			h.delete()
			h.controller.Target = targetView{h.target, cache}
			for range 20 {
				if _, err := h.Reconciler.Reconcile(t.Context(), h.Request()); err != nil {
					t.Fatal(err)
				}
				h.Call()
				h.Clock.Step(time.Second)
			}
			if stays := h.node() != nil; stays != test.stays {
				t.Errorf("the node exists: %v, want %v", stays, test.stays)
			}
		})
	}
}
