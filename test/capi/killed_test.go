package capi

import (
	"context"
	"testing"

	"github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

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
	kills := 0
	for done := false; !done; {
		select {
		case ours, ok := <-changes:
			if !ok {
				t.Fatal("the watch ended")
			}
			if ours.GetDeletionTimestamp() == nil && condition(ours, "NodeJoined")["status"] == "True" {
				w.eventually(func(g gomega.Gomega) { w.settled(g, 1) })
				w.scale("workers", 0)
			}
			if len(ours.GetFinalizers()) == 0 && ours.GetDeletionTimestamp() != nil {
				done = true
			}
			running.Kill()
			kills++
			running = w.manager()
		case <-t.Context().Done():
			t.Fatal(context.Cause(t.Context()))
		}
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

// changes are the states that the objects of a kind go through, as far as a watch shows
// them.
func (w *world) changes(kindName string) <-chan *unstructured.Unstructured {
	w.t.Helper()
	list := &unstructured.UnstructuredList{}
	gvk := kind(kindName)
	gvk.Kind += "List"
	list.SetGroupVersionKind(gvk)
	c, err := client.NewWithWatch(w.Admin, client.Options{})
	if err != nil {
		w.t.Fatal(err)
	}
	watch, err := c.Watch(w.t.Context(), list, client.InNamespace(w.Namespace))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(watch.Stop)
	objects := make(chan *unstructured.Unstructured, 1000)
	go func() {
		defer close(objects)
		for event := range watch.ResultChan() {
			if object, ok := event.Object.(*unstructured.Unstructured); ok {
				objects <- object
			}
		}
	}()
	return objects
}
