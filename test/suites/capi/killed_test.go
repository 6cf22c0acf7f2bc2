package capi

import (
	"testing"
	"time"

	"github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestMillwrightMachine_OneVMAfterManagerIsKilled kills the manager after each of its writes for a machine, from
// the first finalizer to the last. Each time, another manager continues.
func TestMillwrightMachine_OneVMAfterManagerIsKilled(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newHarness(t)
	changes := h.changes("MillwrightMachine")
	running := h.manager()
	h.pool("workers", 1, `{}`)
	kills, leaving := 0, false
	for gone := false; !gone; {
		event := h.next(changes)
		gone = event.Type == watch.Deleted
		if ours := event.Object.(*unstructured.Unstructured); !leaving && condition(ours, "NodeJoined")["status"] == "True" {
			h.eventually(func(g gomega.Gomega) { h.settled(g, 1) })
			h.scale("workers", 0)
			leaving = true
		}
		running.Kill()
		kills++
		h.endLease()
		running = h.manager()
	}
	h.eventually(func(g gomega.Gomega) { h.settled(g, 0) })
	if kills < 5 {
		t.Errorf("the manager was killed %d times only", kills)
	}
	entries, err := h.cloud.Journal()
	if err != nil {
		t.Fatal(err)
	}
	for machine, history := range sim.Histories(entries) {
		if len(history.ProviderIDs) != 1 || history.Left != 0 {
			t.Errorf("%s had the VMs %v, and %d are left", machine, history.ProviderIDs, history.Left)
		}
	}
}

// endLease expires the lease, so that the next manager need not wait.
func (h *harness) endLease() {
	h.t.Helper()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: h.Namespace, Name: infrav1.Lease}}
	if err := h.Client.Delete(h.t.Context(), lease); client.IgnoreNotFound(err) != nil {
		h.t.Fatal(err)
	}
}

// changes are the states of the objects of a kind that a watch shows.
func (h *harness) changes(kindName string) <-chan watch.Event {
	h.t.Helper()
	list := &unstructured.UnstructuredList{}
	gvk := kind(kindName)
	gvk.Kind += "List"
	list.SetGroupVersionKind(gvk)
	c, err := client.NewWithWatch(h.Admin, client.Options{})
	if err != nil {
		h.t.Fatal(err)
	}
	watching, err := c.Watch(h.t.Context(), list, client.InNamespace(h.Namespace))
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(watching.Stop)
	return watching.ResultChan()
}

// next waits for the next change.
func (h *harness) next(changes <-chan watch.Event) watch.Event {
	h.t.Helper()
	select {
	case event, ok := <-changes:
		if !ok || event.Type == watch.Error {
			h.t.Fatalf("the watch ended: %v", event.Object)
		}
		return event
	case <-time.After(waitTimeout):
		h.t.Fatalf("nothing has changed for %v", waitTimeout)
	}
	return watch.Event{}
}
