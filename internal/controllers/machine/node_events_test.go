package machine

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
)

// TestEventsOnTheNode: who looks at a node sees what happens to it and why, once.
func TestEventsOnTheNode(t *testing.T) {
	cases := map[string]struct {
		happens func(w *world)
		want    []string // reasons and parts of messages, in order
	}{
		"joins": {func(*world) {}, nil},
		"machine is deleted": {func(w *world) {
			w.draining(forPod("web"), forPod("web"), emptied)
			w.delete()
			w.settle()
		}, []string{"Normal MachineTerminating Machine shoot/m1 is being deleted"}},
		"machine of a node without pods is deleted": {func(w *world) {
			w.delete()
			w.settle()
		}, nil},
		"drain is forced": {func(w *world) {
			w.draining(forcedFor(drain.ForceDeadline))
			w.delete()
			w.settle()
		}, []string{"Warning ForcedDrain The drain of node node-shoot-m1 was forced"}},
		"eviction is given up": {func(w *world) {
			forced := forPod("db")
			forced.Started = []drain.Action{{Pod: types.NamespacedName{Namespace: "shop", Name: "db"}, Forced: true, Reason: "its eviction was refused 9 time(s)"}}
			w.draining(forced, emptied)
			w.delete()
			w.settle()
		}, []string{"Warning ForcedDrain Deleted without regard to pod disruption budgets: shop/db", "Normal MachineTerminating "}},
		"node is deleted": {func(w *world) {
			if err := w.target.client.Delete(w.Context(), w.node()); err != nil {
				w.Fatal(err)
			}
			w.settle()
		}, []string{"Normal NodeDeleted "}},
		"unhealthy for too long": {func(w *world) {
			w.join(notReady)
			w.settle()
			w.settleAfter(healthTimeout)
		}, []string{"Warning FailedHealth "}},
		"VM is another's": {func(w *world) {
			change(w, w.node(), func(n *corev1.Node) { n.Spec.ProviderID = "sim:///other" })
			w.settle()
			w.settle()
		}, []string{"Warning NodeOfOtherVM "}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.running()
			tc.happens(w)
			got := w.toldOnNodes()
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

// TestNobodyTellsNodes: without the right, or a recorder, all goes as it goes.
func TestNobodyTellsNodes(t *testing.T) {
	w := newWorld(t)
	w.controller.NodeEvents = nil
	w.running()
	w.delete()
	w.settle()
	if !w.gone() || w.node() != nil {
		t.Error("something is left")
	}
	if events := w.told(); len(events) != 1 {
		t.Errorf("events on the Machine: %q, want one", events)
	}
}
