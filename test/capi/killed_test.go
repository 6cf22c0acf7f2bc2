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
)

// The manager is killed whenever it has written something about a machine, from the first
// finalizer to the last; each time the next one goes on.
func TestAManagerKilledAfterEachOfItsWritesMakesOneVM(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	changes := w.changes("MillwrightMachine")
	running := w.manager()
	w.pool("workers", 1, `{}`)
	kills, leaving := 0, false
	for gone := false; !gone; {
		event := w.next(changes)
		gone = event.Type == watch.Deleted
		if ours := event.Object.(*unstructured.Unstructured); !leaving && condition(ours, "NodeJoined")["status"] == "True" {
			w.eventually(func(g gomega.Gomega) { w.settled(g, 1) })
			w.scale("workers", 0)
			leaving = true
		}
		running.Kill()
		kills++
		w.endLease()
		running = w.manager()
	}
	w.eventually(func(g gomega.Gomega) { w.settled(g, 0) })
	if kills < 5 {
		t.Errorf("the manager was killed %d times only", kills)
	}
	entries, err := w.cloud.Journal()
	if err != nil {
		t.Fatal(err)
	}
	for machine, history := range sim.Histories(entries) {
		if len(history.ProviderIDs) != 1 || history.Left != 0 {
			t.Errorf("%s had the VMs %v, and %d are left", machine, history.ProviderIDs, history.Left)
		}
	}
}

// endLease does what time would: the next manager need not wait for the one that was killed.
func (w *world) endLease() {
	w.t.Helper()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: infrav1.Lease}}
	if err := w.Client.Delete(w.t.Context(), lease); client.IgnoreNotFound(err) != nil {
		w.t.Fatal(err)
	}
}

// changes are the states that the objects of a kind go through, as far as a watch shows
// them.
func (w *world) changes(kindName string) <-chan watch.Event {
	w.t.Helper()
	list := &unstructured.UnstructuredList{}
	gvk := kind(kindName)
	gvk.Kind += "List"
	list.SetGroupVersionKind(gvk)
	c, err := client.NewWithWatch(w.Admin, client.Options{})
	if err != nil {
		w.t.Fatal(err)
	}
	watching, err := c.Watch(w.t.Context(), list, client.InNamespace(w.Namespace))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(watching.Stop)
	return watching.ResultChan()
}

// next waits for the next of them.
func (w *world) next(changes <-chan watch.Event) watch.Event {
	w.t.Helper()
	select {
	case event, ok := <-changes:
		if !ok || event.Type == watch.Error {
			w.t.Fatalf("the watch ended: %v", event.Object)
		}
		return event
	case <-time.After(patience):
		w.t.Fatalf("nothing has changed for %v", patience)
	}
	return watch.Event{}
}
