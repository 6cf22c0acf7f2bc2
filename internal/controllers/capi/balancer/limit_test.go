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

// clusterAt returns a Cluster that was created at the given second, and has an endpoint unless the port is 0.
func clusterAt(name string, second, port int32) []client.Object {
	return clusterOf(name, func(infra *infrav1.MillwrightCluster, _ *core.Cluster) {
		infra.CreationTimestamp = metav1.Unix(int64(second), 0)
		if port != 0 {
			infra.Spec.ControlPlaneEndpoint = at(port)
		}
	})
}

// inNamespace sets the namespace of objects.
func inNamespace(namespace string, objects []client.Object) []client.Object {
	for _, object := range objects {
		object.SetNamespace(namespace)
	}
	return objects
}

// settleIn reconciles a MillwrightCluster of any namespace, and returns it.
func (h *harness) settleIn(namespace, name string) *infrav1.MillwrightCluster {
	h.t.Helper()
	infra, key := &infrav1.MillwrightCluster{}, client.ObjectKey{Namespace: namespace, Name: name}
	for range 2 {
		if _, err := h.Reconcile(h.t.Context(), ctrl.Request{NamespacedName: key}); err != nil {
			h.t.Fatal(err)
		}
	}
	if err := h.client.Get(h.t.Context(), key, infra); err != nil {
		h.t.Fatal(err)
	}
	return infra
}

// A namespace gets no more ports than the limit, and other namespaces still get theirs.
func TestLimit_PortsPerNamespace(t *testing.T) {
	h := newHarness(t, slices.Concat(clusterOf("a"), clusterOf("b"), clusterOf("c"), inNamespace("other", clusterOf("d")))...)
	h.limit = 2
	h.start()
	h.wantStatus(h.settle("a"), at(100), infrav1.ReasonNoHealthyMachine)
	h.wantStatus(h.settle("b"), at(101), infrav1.ReasonNoHealthyMachine)
	h.wantStatus(h.settle("c"), nil, infrav1.ReasonTooManyInNamespace)
	h.wantPort("c", 0)
	h.wantStatus(h.settleIn("other", "d"), at(102), infrav1.ReasonNoHealthyMachine)

	// When a MillwrightCluster is deleted, the waiting one is triggered and gets the port.
	if err := h.client.Delete(t.Context(), &infrav1.MillwrightCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}}); err != nil {
		t.Fatal(err)
	}
	triggered := h.watchWakeups()
	if _, err := h.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Namespace: "ns", Name: "a"}}); err != nil {
		t.Fatal(err)
	}
	if got := triggered(); !slices.Equal(got, []string{"c"}) {
		t.Errorf("triggered %v", got)
	}
	h.wantStatus(h.settle("c"), at(100), infrav1.ReasonNoHealthyMachine)
}

// A user who sets endpoints with all ports gets no more than the limit, for the oldest MillwrightClusters, and does
// not take ports from other namespaces.
func TestLimit_CountsUserEndpoints(t *testing.T) {
	h := newHarness(t, slices.Concat(clusterAt("young", 3, 100), clusterAt("old", 1, 101), clusterAt("middle", 2, 102), inNamespace("other", clusterOf("d")))...)
	h.limit = 2
	h.start()
	h.wantStatus(h.settleIn("other", "d"), at(100), infrav1.ReasonNoHealthyMachine)
	h.wantStatus(h.settle("young"), at(100), infrav1.ReasonTooManyInNamespace)
	h.wantStatus(h.settle("middle"), at(102), infrav1.ReasonNoHealthyMachine)
	h.wantStatus(h.settle("old"), at(101), infrav1.ReasonNoHealthyMachine)

	h.start()
	h.wantStatus(h.settle("young"), at(100), infrav1.ReasonTooManyInNamespace)
	h.wantStatus(h.settle("old"), at(101), infrav1.ReasonNoHealthyMachine)
}

// A MillwrightCluster that has a port keeps it when an older one gets an endpoint.
func TestLimit_OpenPortIsKept(t *testing.T) {
	h := newHarness(t, slices.Concat(clusterAt("old", 1, 0), clusterAt("young", 2, 101))...)
	h.limit = 1
	h.start()
	h.wantStatus(h.settle("young"), at(101), infrav1.ReasonNoHealthyMachine)
	old := h.settle("old")
	h.wantStatus(old, nil, infrav1.ReasonTooManyInNamespace)
	old.Spec.ControlPlaneEndpoint = at(100)
	if err := h.client.Update(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	h.wantStatus(h.settle("old"), at(100), infrav1.ReasonTooManyInNamespace)
	h.wantStatus(h.settle("young"), at(101), infrav1.ReasonNoHealthyMachine)
	h.wantPort("young", 101)
}

// The process becomes ready when all ports that existed before its start are open.
func TestStart_ReadyWhenAllPortsAreOpen(t *testing.T) {
	h := newHarness(t, slices.Concat(clusterAt("a", 1, 100), clusterAt("b", 2, 101), clusterAt("c", 3, 102))...)
	h.settle("a") // reconciled before the list of all objects is known
	if err := h.begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"b", "c"} {
		if h.ready.Load() {
			t.Errorf("ready before %s has a port", name)
		}
		h.settle(name)
	}
	if !h.ready.Load() {
		t.Error("not ready although all ports are open")
	}
	none := newHarness(t)
	if err := none.begin(t.Context()); err != nil || !none.ready.Load() {
		t.Errorf("not ready without objects: %v", err)
	}
}
