package fieldindex_test

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	fcache "k8s.io/client-go/tools/cache/testing"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
)

// someMachines returns Machines of two owners and one Machine without an owner.
func someMachines() []*v1alpha1.Machine {
	var machines []*v1alpha1.Machine
	for name, uid := range map[string]types.UID{"a": "one", "b": "one", "c": "two"} {
		machines = append(machines, &v1alpha1.Machine{ObjectMeta: controlled(name, uid)})
	}
	elsewhere := &v1alpha1.Machine{ObjectMeta: controlled("d", "one")}
	elsewhere.Namespace = "elsewhere"
	return append(machines, elsewhere, &v1alpha1.Machine{ObjectMeta: meta("orphan")})
}

// find returns the sorted names of the Machines found.
func find(t *testing.T, machines fieldindex.Machines, namespace, controller string) []string {
	t.Helper()
	found, err := machines.ControlledBy(t.Context(), namespace, controller)
	if err != nil {
		t.Fatal(err)
	}
	names := make(map[string]bool, len(found))
	for _, machine := range found {
		names[machine.Name] = true
	}
	return slices.Sorted(maps.Keys(names))
}

func expectMachines(t *testing.T, machines fieldindex.Machines) {
	t.Helper()
	for _, c := range []struct {
		namespace, controller string
		want                  []string
	}{
		{"ns", "one", []string{"a", "b"}},
		{"ns", "two", []string{"c"}},
		{"ns", fieldindex.Orphan, []string{"orphan"}},
		{"ns", "three", nil},
		{"elsewhere", "one", []string{"d"}},
		{"nowhere", "one", nil},
	} {
		if got := find(t, machines, c.namespace, c.controller); !slices.Equal(got, c.want) {
			t.Errorf("in %s, controlled by %s: %v, want %v", c.namespace, c.controller, got, c.want)
		}
	}
}

func TestMachines_FromList(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	build := builder{ClientBuilder: fake.NewClientBuilder().WithScheme(scheme)}
	if err := fieldindex.Add(t.Context(), build); err != nil {
		t.Fatal(err)
	}
	for _, machine := range someMachines() {
		build.WithObjects(machine)
	}
	expectMachines(t, fieldindex.Listed(build.Build()))
}

// indexers returns the index as controller-runtime's cache adds it. Tests of the manager verify the names that
// the cache itself gives to indexes.
func indexers() toolscache.Indexers {
	return toolscache.Indexers{"field:" + fieldindex.ByController: func(object any) ([]string, error) {
		machine := object.(*v1alpha1.Machine)
		owner := fieldindex.Orphan
		if len(machine.OwnerReferences) > 0 {
			owner = string(machine.OwnerReferences[1].UID)
		}
		return []string{machine.Namespace + "/" + owner}, nil
	}}
}

func TestMachines_FromInformerWithoutCopy(t *testing.T) {
	machines, source := &fieldindex.Informers{}, fcache.NewFakeControllerSource()
	if _, err := machines.ControlledBy(t.Context(), "ns", "one"); err == nil {
		t.Error("found Machines without an informer")
	}
	machines.NewInformer(source, &corev1.Secret{}, 0, nil)
	informer := machines.NewInformer(source, &v1alpha1.Machine{}, 0, indexers())
	if _, err := machines.ControlledBy(t.Context(), "ns", "one"); err == nil {
		t.Error("found Machines before the informer had synced")
	}

	for _, machine := range someMachines() {
		source.Add(machine)
	}
	run(t, informer)
	expectMachines(t, machines)
	found, err := machines.ControlledBy(t.Context(), "ns", "two")
	if err != nil {
		t.Fatal(err)
	}
	if cached, _, err := informer.GetStore().GetByKey("ns/c"); err != nil || cached != any(found[0]) {
		t.Errorf("found a copy of the Machine (%v)", err)
	}
}

func TestMachines_InformerWithoutIndex(t *testing.T) {
	machines, source := &fieldindex.Informers{}, fcache.NewFakeControllerSource()
	run(t, machines.NewInformer(source, &v1alpha1.Machine{}, 0, toolscache.Indexers{}))
	if found, err := machines.ControlledBy(t.Context(), "ns", "one"); err == nil {
		t.Errorf("found %v without the index", found)
	}
}

// run runs an informer until the test is over and waits until it has synced.
func run(t *testing.T, informer toolscache.SharedIndexInformer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	go informer.RunWithContext(ctx)
	if !toolscache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		t.Fatal("the informer has not synced")
	}
}
