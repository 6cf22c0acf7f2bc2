package machine

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// removeByForce deletes the Machine as a user does who removes its finalizers.
func (h *harness) removeByForce() {
	h.Helper()
	drop := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	if err := h.control.Patch(h.Context(), h.machine(), drop); err != nil {
		h.Fatal(err)
	}
	h.delete()
}

// TestMachine_NodeOfRemovedMachineIsDeleted checks that the node of a Machine does not remain if its finalizers were
// removed, as in MCM.
func TestMachine_NodeOfRemovedMachineIsDeleted(t *testing.T) {
	h := newHarness(t)
	h.running()
	h.removeByForce()
	h.Settle()
	if h.node() != nil {
		t.Error("the node was not deleted")
	}
}

// TestMachine_NodeOfOthersIsKept checks nodes that do not belong to a Machine that was removed by force.
func TestMachine_NodeOfOthersIsKept(t *testing.T) {
	for name, change := range map[string]func(h *harness, node *corev1.Node){
		"without our finalizer": func(_ *harness, node *corev1.Node) { node.Finalizers = nil },
		"of another Machine": func(_ *harness, node *corev1.Node) {
			node.Labels[v1alpha1.LabelKeyMachineName] = "other"
		},
		"named by another Machine": func(h *harness, node *corev1.Node) {
			other := newMachine("elsewhere", h.Clock.Now())
			other.SetNodeName(node.Name)
			h.create(other)
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.running()
			node := h.node()
			change(h, node)
			if err := h.target.client.Update(h.Context(), node); err != nil {
				t.Fatal(err)
			}
			h.removeByForce()
			h.Settle()
			if h.node() == nil {
				t.Error("the node was deleted")
			}
		})
	}
}

// TestMachine_NodeOfRemovedMachineAwaitsTarget checks that the node is deleted once the target cluster is available.
func TestMachine_NodeOfRemovedMachineAwaitsTarget(t *testing.T) {
	h := newHarness(t)
	h.running()
	h.removeByForce()
	since := h.target.since
	h.target.since = time.Time{}
	if result := h.Settle(); h.node() == nil || result.RequeueAfter == 0 {
		t.Errorf("the node exists: %v, the next pass is due in %v", h.node() != nil, result.RequeueAfter)
	}
	h.target.since = since
	if h.Settle(); h.node() != nil {
		t.Error("the node was not deleted")
	}
}
