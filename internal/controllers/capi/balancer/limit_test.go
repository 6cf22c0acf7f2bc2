package balancer

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
)

// made is a Cluster of an age, which has a given endpoint unless the port is 0.
func made(name string, second, port int32) []client.Object {
	return clusterOf(name, func(infra *infrav1.MillwrightCluster, _ *core.Cluster) {
		infra.CreationTimestamp = metav1.Unix(int64(second), 0)
		if port != 0 {
			infra.Spec.ControlPlaneEndpoint = at(port)
		}
	})
}

// of moves Clusters to another namespace.
func of(namespace string, objects []client.Object) []client.Object {
	for _, object := range objects {
		object.SetNamespace(namespace)
	}
	return objects
}

// pass takes passes of a MillwrightCluster of any namespace, and returns it.
func (g *given) pass(namespace, name string) *infrav1.MillwrightCluster {
	g.t.Helper()
	infra, key := &infrav1.MillwrightCluster{}, client.ObjectKey{Namespace: namespace, Name: name}
	for range 2 {
		if _, err := g.Reconcile(g.t.Context(), ctrl.Request{NamespacedName: key}); err != nil {
			g.t.Fatal(err)
		}
	}
	if err := g.client.Get(g.t.Context(), key, infra); err != nil {
		g.t.Fatal(err)
	}
	return infra
}

// A namespace gets no more ports than its part, and others get theirs.
func TestANamespaceHasItsPartOfThePorts(t *testing.T) {
	g := newGiven(t, slices.Concat(clusterOf("a"), clusterOf("b"), clusterOf("c"), of("other", clusterOf("d")))...)
	g.limit = 2
	g.start()
	g.has(g.reconciles("a"), at(100), infrav1.ReasonNoHealthyMachine)
	g.has(g.reconciles("b"), at(101), infrav1.ReasonNoHealthyMachine)
	g.has(g.reconciles("c"), nil, infrav1.ReasonTooManyInNamespace)
	g.isOpen("c", 0)
	g.has(g.pass("other", "d"), at(102), infrav1.ReasonNoHealthyMachine)

	// When one is deleted, the one that waits is woken, and gets its port.
	if err := g.client.Delete(t.Context(), &infrav1.MillwrightCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}}); err != nil {
		t.Fatal(err)
	}
	woken := g.wakes()
	if _, err := g.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Namespace: "ns", Name: "a"}}); err != nil {
		t.Fatal(err)
	}
	if got := woken(); !slices.Equal(got, []string{"c"}) {
		t.Errorf("woken are %v", got)
	}
	g.has(g.reconciles("c"), at(100), infrav1.ReasonNoHealthyMachine)
}

// Whoever gives himself all ports as endpoints has no more than his part, of which the oldest are, and keeps none from others.
func TestGivenEndpointsCount(t *testing.T) {
	g := newGiven(t, slices.Concat(made("young", 3, 100), made("old", 1, 101), made("middle", 2, 102), of("other", clusterOf("d")))...)
	g.limit = 2
	g.start()
	g.has(g.pass("other", "d"), at(100), infrav1.ReasonNoHealthyMachine)
	g.has(g.reconciles("young"), at(100), infrav1.ReasonTooManyInNamespace)
	g.has(g.reconciles("middle"), at(102), infrav1.ReasonNoHealthyMachine)
	g.has(g.reconciles("old"), at(101), infrav1.ReasonNoHealthyMachine)

	g.start()
	g.has(g.reconciles("young"), at(100), infrav1.ReasonTooManyInNamespace)
	g.has(g.reconciles("old"), at(101), infrav1.ReasonNoHealthyMachine)
}

// One that works is not cut off for an older one that gets an endpoint.
func TestAnOpenPortStaysWithinTheLimit(t *testing.T) {
	g := newGiven(t, slices.Concat(made("old", 1, 0), made("young", 2, 101))...)
	g.limit = 1
	g.start()
	g.has(g.reconciles("young"), at(101), infrav1.ReasonNoHealthyMachine)
	old := g.reconciles("old")
	g.has(old, nil, infrav1.ReasonTooManyInNamespace)
	old.Spec.ControlPlaneEndpoint = at(100)
	if err := g.client.Update(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	g.has(g.reconciles("old"), at(100), infrav1.ReasonTooManyInNamespace)
	g.has(g.reconciles("young"), at(101), infrav1.ReasonNoHealthyMachine)
	g.isOpen("young", 101)
}

// All ports that were there before the process are open before it says that it is ready.
func TestReadyWhenAllPortsAreOpen(t *testing.T) {
	g := newGiven(t, slices.Concat(made("a", 1, 100), made("b", 2, 101), made("c", 3, 102))...)
	g.reconciles("a") // its event comes before all are known
	if err := g.begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"b", "c"} {
		if g.ready.Load() {
			t.Errorf("it is ready before %s has a port", name)
		}
		g.reconciles(name)
	}
	if !g.ready.Load() {
		t.Error("it does not become ready")
	}
	none := newGiven(t)
	if err := none.begin(t.Context()); err != nil || !none.ready.Load() {
		t.Errorf("without objects it is not ready: %v", err)
	}
}
