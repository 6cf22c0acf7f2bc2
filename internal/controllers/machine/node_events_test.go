package machine

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
	"github.com/millwright-dev/millwright/test/support/lockstep"
)

// TestMachine_EventsOnNode checks that a node gets one event for each thing that happens to it.
func TestMachine_EventsOnNode(t *testing.T) {
	cases := map[string]struct {
		happens func(h *harness)
		want    []string // reasons and parts of messages, in order
	}{
		"joins": {func(*harness) {}, nil},
		"machine is deleted": {func(h *harness) {
			h.draining(forPod("web"), forPod("web"), emptied)
			h.delete()
			h.Settle()
		}, []string{"Normal MachineTerminating Machine shoot/m1 is being deleted"}},
		"machine of a node without pods is deleted": {func(h *harness) {
			h.delete()
			h.Settle()
		}, nil},
		"drain is forced": {func(h *harness) {
			h.draining(forcedFor(drain.ForceDeadline))
			h.delete()
			h.Settle()
		}, []string{"Warning ForcedDrain The drain of node node-shoot-m1 was forced"}},
		"eviction is given up": {func(h *harness) {
			forced := forPod("db")
			forced.Started = []drain.Action{{Pod: types.NamespacedName{Namespace: "shop", Name: "db"}, Forced: true, Reason: "its eviction was refused 9 time(s)"}}
			h.draining(forced, emptied)
			h.delete()
			h.Settle()
		}, []string{"Warning ForcedDrain Deleted Pods, ignoring disruption budgets: shop/db", "Normal MachineTerminating "}},
		"node is deleted": {func(h *harness) {
			if err := h.target.client.Delete(h.Context(), h.node()); err != nil {
				h.Fatal(err)
			}
			h.Settle()
		}, []string{"Normal NodeDeleted "}},
		"unhealthy for too long": {func(h *harness) {
			h.join(notReady)
			h.Settle()
			h.SettleAfter(healthTimeout)
		}, []string{"Warning FailedHealth "}},
		"node has another VM": {func(h *harness) {
			change(h, h.node(), func(n *corev1.Node) { n.Spec.ProviderID = "sim:///other" })
			h.Settle()
			h.Settle()
		}, []string{"Warning NodeOfOtherVM "}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.running()
			tc.happens(h)
			got := lockstep.TakeEvents(h.nodeEvents)
			if len(got) != len(tc.want) {
				t.Fatalf("events %q, want %q", got, tc.want)
			}
			for i := range got {
				if !strings.HasPrefix(got[i], tc.want[i]) {
					t.Errorf("event %q, want %q", got[i], tc.want[i])
				}
			}
		})
	}
}

// TestMachine_WorksWithoutNodeRecorder checks that Machines are reconciled without a recorder for nodes.
func TestMachine_WorksWithoutNodeRecorder(t *testing.T) {
	h := newHarness(t)
	h.controller.NodeEvents = nil
	h.running()
	h.delete()
	h.Settle()
	if !h.gone() || h.node() != nil {
		t.Error("the deletion is incomplete")
	}
	if events := h.takeEvents(); len(events) != 1 {
		t.Errorf("events on the Machine: %q, want one", events)
	}
}
