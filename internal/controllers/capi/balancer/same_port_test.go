package balancer

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
)

// Of two with the same endpoint exactly one is served, whichever has its pass first, and the same one after each restart.
func TestTheSamePortGivenTwice(t *testing.T) {
	for name, test := range map[string]struct {
		begin         func(g *given) // before the restart
		winner, loser string
	}{
		"both are new": {func(*given) {}, "old", "young"},
		"the younger one had it": {func(g *given) {
			old := g.without("old")
			g.reconciles("young")
			g.create(old)
		}, "young", "old"},
		"the older one had it, and both were seen": {func(g *given) {
			g.reconciles("young")
			g.reconciles("old")
		}, "old", "young"},
		"the older one had another port, and got this one meanwhile": {func(g *given) {
			g.changes("old", 100)
			g.reconciles("old")
			g.reconciles("young")
			g.changes("old", 101)
		}, "young", "old"},
		"the younger one had it, and was changed meanwhile": {func(g *given) {
			old := g.without("old")
			g.reconciles("young")
			g.create(old)
			g.reconciles("old")
			g.changes("young", 101)
		}, "young", "old"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, order := range [][]string{{"old", "young"}, {"young", "old"}} {
				g := newGiven(t, slices.Concat(made("young", 2, 101), made("old", 1, 101))...)
				test.begin(g)
				for range 2 {
					g.start()
					for _, name := range append(order, order...) {
						g.reconciles(name)
					}
					g.isOpen(test.winner, 101)
					g.has(g.reconciles(test.winner), at(101), infrav1.ReasonNoHealthyMachine)
					g.isOpen(test.loser, 0)
					lost := g.reconciles(test.loser)
					g.has(lost, at(101), infrav1.ReasonPortTaken)
					want := "Port 101 is that of MillwrightCluster ns/" + test.winner
					if c := meta.FindStatusCondition(lost.Status.Conditions, infrav1.ConditionLoadBalancerReady); c != nil && c.Message != want {
						t.Errorf("the message is %q, want %q", c.Message, want)
					}
				}
			}
		})
	}
}

// What is open in the process that leads stays open, whatever a condition says that is older.
func TestTheSamePortWhileItIsOpen(t *testing.T) {
	g := newGiven(t, slices.Concat(made("young", 2, 101), clusterOf("old", func(_ *infrav1.MillwrightCluster, cluster *core.Cluster) {
		cluster.Spec.Paused = true
	}))...)
	g.has(g.reconciles("young"), at(101), infrav1.ReasonNoHealthyMachine)
	g.changes("old", 101)
	g.annotate("young", map[string]string{core.AnnotationManagedBy: ""})
	g.reconciles("young")
	g.reconciles("old")
	g.isOpen("old", 101) // it is paused, so nothing is written of it
	g.annotate("young", nil)
	g.has(g.reconciles("young"), at(101), infrav1.ReasonPortTaken)
	g.isOpen("old", 101)
}

func (g *given) annotate(name string, annotations map[string]string) {
	g.t.Helper()
	infra := g.reads(name)
	infra.Annotations = annotations
	if err := g.client.Update(g.t.Context(), infra); err != nil {
		g.t.Fatal(err)
	}
}

// without takes a MillwrightCluster away for a while; it returns it.
func (g *given) without(name string) *infrav1.MillwrightCluster {
	g.t.Helper()
	infra := g.reads(name)
	if err := g.client.Delete(g.t.Context(), infra); err != nil {
		g.t.Fatal(err)
	}
	infra.ResourceVersion = ""
	return infra
}

func (g *given) create(infra *infrav1.MillwrightCluster) {
	g.t.Helper()
	if err := g.client.Create(g.t.Context(), infra); err != nil {
		g.t.Fatal(err)
	}
}

// changes gives a MillwrightCluster an endpoint by hand, as a new generation.
func (g *given) changes(name string, port int32) {
	g.t.Helper()
	infra := g.reads(name)
	infra.Spec.ControlPlaneEndpoint = at(port)
	infra.Generation++
	if err := g.client.Update(g.t.Context(), infra); err != nil {
		g.t.Fatal(err)
	}
}

func (g *given) reads(name string) *infrav1.MillwrightCluster {
	g.t.Helper()
	infra := &infrav1.MillwrightCluster{}
	if err := g.client.Get(g.t.Context(), client.ObjectKey{Namespace: "ns", Name: name}, infra); err != nil {
		g.t.Fatal(err)
	}
	return infra
}
