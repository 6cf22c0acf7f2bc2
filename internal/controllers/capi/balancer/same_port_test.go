package balancer

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
)

// Exactly one of two MillwrightClusters with the same endpoint is served, whichever is reconciled first, and the same
// one after each restart.
func TestPort_SharedIsServedForOne(t *testing.T) {
	for name, test := range map[string]struct {
		prepare       func(h *harness) // before the restart
		winner, loser string
	}{
		"both new": {func(*harness) {}, "old", "young"},
		"younger was served": {func(h *harness) {
			old := h.remove("old")
			h.settle("young")
			h.create(old)
		}, "young", "old"},
		"older was served, younger refused": {func(h *harness) {
			h.settle("young")
			h.settle("old")
		}, "old", "young"},
		"older moved to the port": {func(h *harness) {
			h.setPort("old", 100)
			h.settle("old")
			h.settle("young")
			h.setPort("old", 101)
		}, "young", "old"},
		"younger was served, then changed": {func(h *harness) {
			old := h.remove("old")
			h.settle("young")
			h.create(old)
			h.settle("old")
			h.setPort("young", 101)
		}, "young", "old"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, order := range [][]string{{"old", "young"}, {"young", "old"}} {
				h := newHarness(t, slices.Concat(clusterAt("young", 2, 101), clusterAt("old", 1, 101))...)
				test.prepare(h)
				for range 2 {
					h.start()
					for _, name := range append(order, order...) {
						h.settle(name)
					}
					h.wantPort(test.winner, 101)
					h.wantStatus(h.settle(test.winner), at(101), infrav1.ReasonNoHealthyMachine)
					h.wantPort(test.loser, 0)
					lost := h.settle(test.loser)
					h.wantStatus(lost, at(101), infrav1.ReasonPortTaken)
					want := "Port 101 is already used by MillwrightCluster ns/" + test.winner
					if c := meta.FindStatusCondition(lost.Status.Conditions, infrav1.ConditionLoadBalancerReady); c != nil && c.Message != want {
						t.Errorf("the message is %q, want %q", c.Message, want)
					}
				}
			}
		})
	}
}

// A port that is open in the leader stays open, even if an older condition names another MillwrightCluster.
func TestPort_OpenIsKept(t *testing.T) {
	h := newHarness(t, slices.Concat(clusterAt("young", 2, 101), clusterOf("old", func(_ *infrav1.MillwrightCluster, cluster *core.Cluster) {
		cluster.Spec.Paused = true
	}))...)
	h.wantStatus(h.settle("young"), at(101), infrav1.ReasonNoHealthyMachine)
	h.setPort("old", 101)
	h.annotate("young", map[string]string{core.KeyManagedBy: ""})
	h.settle("young")
	h.settle("old")
	h.wantPort("old", 101) // its Cluster is paused, so its status is not written
	h.annotate("young", nil)
	h.wantStatus(h.settle("young"), at(101), infrav1.ReasonPortTaken)
	h.wantPort("old", 101)
}

func (h *harness) annotate(name string, annotations map[string]string) {
	h.t.Helper()
	infra := h.get(name)
	infra.Annotations = annotations
	if err := h.client.Update(h.t.Context(), infra); err != nil {
		h.t.Fatal(err)
	}
}

// remove deletes a MillwrightCluster and returns it, so that it can be created again.
func (h *harness) remove(name string) *infrav1.MillwrightCluster {
	h.t.Helper()
	infra := h.get(name)
	if err := h.client.Delete(h.t.Context(), infra); err != nil {
		h.t.Fatal(err)
	}
	infra.ResourceVersion = ""
	return infra
}

func (h *harness) create(infra *infrav1.MillwrightCluster) {
	h.t.Helper()
	if err := h.client.Create(h.t.Context(), infra); err != nil {
		h.t.Fatal(err)
	}
}

// setPort sets the endpoint of a MillwrightCluster as a user would, with a new generation.
func (h *harness) setPort(name string, port int32) {
	h.t.Helper()
	infra := h.get(name)
	infra.Spec.ControlPlaneEndpoint = at(port)
	infra.Generation++
	if err := h.client.Update(h.t.Context(), infra); err != nil {
		h.t.Fatal(err)
	}
}

func (h *harness) get(name string) *infrav1.MillwrightCluster {
	h.t.Helper()
	infra := &infrav1.MillwrightCluster{}
	if err := h.client.Get(h.t.Context(), client.ObjectKey{Namespace: "ns", Name: name}, infra); err != nil {
		h.t.Fatal(err)
	}
	return infra
}
