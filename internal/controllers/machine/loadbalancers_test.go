package machine

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/lockstep"
)

// toBeDeleted returns the node's taints that remove it from load balancers.
func toBeDeleted(node *corev1.Node) []corev1.Taint {
	return slices.DeleteFunc(slices.Clone(node.Spec.Taints), func(taint corev1.Taint) bool { return taint.Key != "ToBeDeletedByClusterAutoscaler" })
}

// TestMachine_LeavesLoadBalancersBetweenDrainAndDeletion checks that a node gets the taint of the cluster autoscaler
// after its Pods are gone and before its VM is deleted, with one request, and only once.
func TestMachine_LeavesLoadBalancersBetweenDrainAndDeletion(t *testing.T) {
	h := newHarness(t)
	h.running()
	h.draining(forPod("web"), emptied)
	h.delete()
	h.Pass()
	if n := h.node(); len(toBeDeleted(n)) != 0 || !n.Spec.Unschedulable {
		t.Errorf("taints %v, cordoned %v, during the drain", n.Spec.Taints, n.Spec.Unschedulable)
	}
	want := corev1.Taint{Key: "ToBeDeletedByClusterAutoscaler", Value: fmt.Sprint(h.Clock.Now().Unix()), Effect: corev1.TaintEffectNoSchedule}
	h.Writes = nil
	h.ignoreDeletes(true)
	h.Settle()
	if got := toBeDeleted(h.node()); len(got) != 1 || got[0] != want {
		t.Errorf("taints %v after the drain, want %v", got, want)
	}
	h.restart()
	h.Settle()
	if n := count(h.TakeWrites(), "patch Node"); n != 1 {
		t.Errorf("%d writes to the node, want 1", n)
	}
}

// TestMachine_LeavesLoadBalancersBeforeVMIsDeleted checks the order of the request and the driver's call.
func TestMachine_LeavesLoadBalancersBeforeVMIsDeleted(t *testing.T) {
	h := newHarness(t)
	h.running()
	h.draining(forPod("web"), emptied)
	h.delete()
	h.Pass()
	h.Refuse = func(made lockstep.Write) error {
		if made.What == "patch Node" {
			return apierrors.NewConflict(corev1.Resource("nodes"), h.nodeName(), errDown)
		}
		return nil
	}
	h.Pass()
	if len(h.Tasks) != 0 || len(h.methods()) != 0 {
		t.Error("the VM is deleted although a conflict prevented the taint")
	}
	h.Refuse = nil
	h.Settle()
	if !h.gone() {
		t.Error("the Machine was not deleted")
	}
}

// TestMachine_KeepsTaintOfAutoscaler checks that the taint of the cluster autoscaler is not replaced, and then saves the
// request.
func TestMachine_KeepsTaintOfAutoscaler(t *testing.T) {
	h := newHarness(t)
	h.running()
	theirs := corev1.Taint{Key: "ToBeDeletedByClusterAutoscaler", Value: "1700000000", Effect: corev1.TaintEffectNoSchedule}
	node := h.node()
	node.Spec.Taints = append(node.Spec.Taints, theirs)
	if err := h.target.client.Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	h.draining(forPod("web"), emptied)
	h.delete()
	h.Pass()
	h.Writes = nil
	h.ignoreDeletes(true)
	h.Settle()
	if got := toBeDeleted(h.node()); len(got) != 1 || got[0] != theirs {
		t.Errorf("taints %v, want %v", got, theirs)
	}
	if n := count(h.TakeWrites(), "patch Node"); n != 0 {
		t.Errorf("%d writes to the node, want none", n)
	}
}

// TestMachine_DeniedTaintDoesNotPreventDeletion checks that an admission policy that denies the taint does not prevent
// the deletion of a Machine, whether its node has Pods or not.
func TestMachine_DeniedTaintDoesNotPreventDeletion(t *testing.T) {
	denial := apierrors.NewForbidden(corev1.Resource("nodes"), "node", nil)
	denial.ErrStatus.Message = `nodes "node" is forbidden: ValidatingAdmissionPolicy 'taints' with binding 'taints' denied request: no`
	for name, pods := range map[string]bool{"with Pods": true, "without Pods": false} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.running()
			if pods {
				h.draining(forPod("web"), emptied)
			}
			h.Refuse = func(made lockstep.Write) error {
				if made.What == "patch Node" && strings.Contains(made.Body, "ToBeDeletedByClusterAutoscaler") {
					return denial
				}
				return nil
			}
			h.delete()
			h.Pass()
			if !h.node().Spec.Unschedulable {
				t.Error("the node was not cordoned")
			}
			h.Settle()
			if !h.gone() || h.node() != nil {
				t.Error("the Machine was not deleted")
			}
		})
	}
}

// TestInPlaceUpdate_KeepsLoadBalancers checks that the drain of a node that is updated in place does not remove it from
// load balancers.
func TestInPlaceUpdate_KeepsLoadBalancers(t *testing.T) {
	h := newHarness(t)
	h.updating()
	if h.machine().Status.CurrentStatus.Phase != v1alpha1.MachineInPlaceUpdating || !h.node().Spec.Unschedulable {
		t.Fatalf("phase %q", h.machine().Status.CurrentStatus.Phase)
	}
	if got := toBeDeleted(h.node()); len(got) != 0 {
		t.Errorf("taints %v", got)
	}
}
