package ui

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// cluster is a fake API server. Its fields may be changed while it is used.
type cluster struct {
	client.WithWatch
	mu sync.Mutex
	// refused returns an error for the lists and watches of a kind in a namespace, or nil.
	refused func(list client.ObjectList, namespace string) error
	watches []watch.Interface
	// opened is how many watches were opened for each kind.
	opened map[string]int
	// leaseTime is how long the API server takes to respond with a lease.
	leaseTime time.Duration
}

func newCluster(t *testing.T, objects ...client.Object) *cluster {
	t.Helper()
	c := &cluster{refused: func(client.ObjectList, string) error { return nil }, opened: map[string]int{}}
	check := func(list client.ObjectList, options []client.ListOption) error {
		var of client.ListOptions
		of.ApplyOptions(options)
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.refused(list, of.Namespace)
	}
	inner := newFakeClient(t, objects...)
	c.WithWatch = fakeClient{interceptor.NewClient(inner.(fakeClient).WithWatch, interceptor.Funcs{
		Get: func(ctx context.Context, to client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
			if _, is := object.(*coordinationv1.Lease); is {
				c.mu.Lock()
				took := c.leaseTime
				c.mu.Unlock()
				time.Sleep(took) // fake
			}
			return to.Get(ctx, key, object, options...)
		},
		List: func(ctx context.Context, to client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			if err := check(list, options); err != nil {
				return err
			}
			return to.List(ctx, list, options...)
		},
		Watch: func(ctx context.Context, to client.WithWatch, list client.ObjectList, options ...client.ListOption) (watch.Interface, error) {
			if err := check(list, options); err != nil {
				return nil, err
			}
			w, err := to.Watch(ctx, list, options...)
			c.mu.Lock()
			defer c.mu.Unlock()
			c.watches = append(c.watches, w)
			c.opened[nameOf(list)]++
			return w, err
		},
	})}
	return c
}

// nameOf returns the kind of a list, or "" for one of Kubernetes.
func nameOf(list client.ObjectList) string {
	switch list.(type) {
	case *v1alpha1.MachineList:
		return "Machine"
	case *v1alpha1.MachineSetList:
		return "MachineSet"
	case *v1alpha1.MachineDeploymentList:
		return "MachineDeployment"
	case *vmv1alpha1.VirtualMachineList:
		return "VirtualMachine"
	}
	return ""
}

// refuse sets what is refused, and closes all watches.
func (c *cluster) refuse(refused func(list client.ObjectList, namespace string) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refused = refused
	for _, w := range c.watches {
		w.Stop()
	}
	c.watches = nil
}

var errForbidden = apierrors.NewForbidden(schema.GroupResource{Resource: "things"}, "", errors.New("no permission"))

// world runs a model over a fake API server, with fake time.
type world struct {
	*cluster
	t     *testing.T
	model *model
}

// inWorld runs a test in a bubble.
func inWorld(t *testing.T, objects []client.Object, fallback string, refused func(list client.ObjectList, namespace string) error, test func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{cluster: newCluster(t, objects...), t: t}
		if refused != nil {
			w.refused = refused
		}
		w.model = newModel(w.cluster.WithWatch, "", fallback)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			w.model.run(ctx)
		}()
		w.pass(5 * time.Second)
		test(w)
		cancel()
		w.refuse(func(client.ObjectList, string) error { return context.Canceled })
		<-done
	})
}

// pass lets time pass.
func (w *world) pass(d time.Duration) {
	time.Sleep(d) // fake
	synctest.Wait()
}

// shown returns a row, and whether it exists.
func shown[T any](w *world, id string) (found T, exists bool) {
	delta, _, _ := w.model.hub.since(0)
	for _, text := range delta.Rows {
		var head Row
		if err := json.Unmarshal(text, &head); err != nil {
			w.t.Fatal(err)
		}
		if head.ID == id {
			if err := json.Unmarshal(text, &found); err != nil {
				w.t.Fatal(err)
			}
			return found, true
		}
	}
	return found, false
}

// wantAccess checks what the page shows about a kind.
func (w *world) wantAccess(kind string, want Access, namespace string) {
	w.t.Helper()
	got, _ := shown[KindRow](w, "kind/"+kind)
	if got.Access != want || got.Namespace != namespace {
		w.t.Errorf("%s: %+v, want %s in namespace %q", kind, got, want, namespace)
	}
}

// onePool returns a deployment of three Machines, of which two exist: one is Running, and one Failed.
func onePool() []client.Object {
	labels := map[string]string{"pool": "a"}
	template := v1alpha1.MachineTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: v1alpha1.MachineSpec{Class: v1alpha1.ClassSpec{Kind: "MachineClass", Name: "small"}}}
	meta := func(name string, owner client.Object, kind string) metav1.ObjectMeta {
		m := metav1.ObjectMeta{Namespace: "n", Name: name, UID: types.UID(name), Labels: labels, Generation: 1}
		if owner != nil {
			m.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, v1alpha1.SchemeGroupVersion.WithKind(kind))}
		}
		return m
	}
	deployment := &v1alpha1.MachineDeployment{ObjectMeta: meta("pool", nil, ""), Spec: v1alpha1.MachineDeploymentSpec{Replicas: 3, Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template}}
	deployment.Status.ObservedGeneration = 1
	set := &v1alpha1.MachineSet{ObjectMeta: meta("pool-1", deployment, "MachineDeployment"), Spec: v1alpha1.MachineSetSpec{Replicas: 3, Selector: deployment.Spec.Selector, Template: template}}
	set.Annotations = map[string]string{v1alpha1.AnnotationKeyRevision: "1"}
	machine := func(name string, phase v1alpha1.MachinePhase) *v1alpha1.Machine {
		m := &v1alpha1.Machine{ObjectMeta: meta(name, set, "MachineSet"), Spec: template.Spec}
		m.Status.CurrentStatus.Phase = phase
		return m
	}
	return []client.Object{deployment, set, machine("pool-1-a", v1alpha1.MachineRunning), machine("pool-1-b", v1alpha1.MachineFailed)}
}

// TestModel_ShowsPool checks the rows of a pool.
func TestModel_ShowsPool(t *testing.T) {
	inWorld(t, onePool(), "", nil, func(w *world) {
		got, exists := shown[PoolRow](w, "pool/n/pool")
		if !exists || got.Replicas != 3 || got.Most != 4 || got.Least != 2 || got.Revision != 1 || got.Outcome != "Progressing" || len(got.Waits) == 0 {
			t.Errorf("pool: %t, %+v", exists, got)
		}
		machine, _ := shown[MachineRow](w, "machine/n/pool-1-b")
		if machine.Phase != "Failed" || machine.Set != "pool-1" || machine.Class != "small" {
			t.Errorf("machine: %+v", machine)
		}
		if set, _ := shown[SetRow](w, "set/n/pool-1"); set.Pool != "pool" || set.Revision != "1" {
			t.Errorf("set: %+v", set)
		}
	})
}

// TestModel_SlowAPIServer checks that machines stay current if the API server takes long for each lease, of which there are
// two for each namespace.
func TestModel_SlowAPIServer(t *testing.T) {
	objects := onePool()
	for i := range 60 {
		objects = append(objects, &v1alpha1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprintf("n-%d", i), Name: "pool"}})
	}
	inWorld(t, objects, "", nil, func(w *world) {
		w.mu.Lock()
		w.leaseTime = 100 * time.Millisecond
		w.mu.Unlock()
		machine := objects[2].DeepCopyObject().(*v1alpha1.Machine)
		for _, phase := range []v1alpha1.MachinePhase{v1alpha1.MachineUnknown, v1alpha1.MachineRunning, v1alpha1.MachineFailed} {
			w.pass(5 * time.Second)
			if err := w.Get(t.Context(), client.ObjectKeyFromObject(machine), machine); err != nil {
				t.Fatal(err)
			}
			machine.Status.CurrentStatus.Phase = phase
			if err := w.Update(t.Context(), machine); err != nil {
				t.Fatal(err)
			}
			w.pass(3 * time.Second)
			if got, _ := shown[MachineRow](w, "machine/n/pool-1-a"); got.Phase != string(phase) {
				t.Errorf("phase %s, want %s", got.Phase, phase)
			}
		}
	})
}

// TestModel_WatchesOnce checks that each kind is watched once.
func TestModel_WatchesOnce(t *testing.T) {
	inWorld(t, onePool(), "", nil, func(w *world) {
		w.pass(2 * time.Second)
		for kind, n := range w.opened {
			if kind != "" && n != 1 {
				t.Errorf("%d watches of %s were opened, want 1", n, kind)
			}
		}
	})
}

// TestModel_FollowsDeletions checks that deleted objects are not shown any more.
func TestModel_FollowsDeletions(t *testing.T) {
	inWorld(t, onePool(), "", nil, func(w *world) {
		w.deleteAll(onePool()[2:])
		if _, exists := shown[MachineRow](w, "machine/n/pool-1-b"); exists {
			t.Error("a deleted machine is shown")
		}
		if got, _ := shown[PoolRow](w, "pool/n/pool"); got.Pool.Exist != 0 {
			t.Errorf("pool without machines: %+v", got.Pool)
		}
		w.deleteAll(onePool()[:1])
		if _, exists := shown[PoolRow](w, "pool/n/pool"); exists {
			t.Error("a deleted pool is shown")
		}
	})
}

// deleteAll deletes objects, and waits until the model has seen that.
func (w *world) deleteAll(objects []client.Object) {
	w.t.Helper()
	for _, object := range objects {
		if err := w.Delete(w.t.Context(), object); err != nil {
			w.t.Fatal(err)
		}
	}
	w.pass(2 * time.Second)
}

// TestModel_ReportsForbiddenKinds checks that the page shows which kinds the user may not list, that it shows the others,
// and that it shows all once the user has the permission.
func TestModel_ReportsForbiddenKinds(t *testing.T) {
	refused := func(list client.ObjectList, _ string) error {
		if name := nameOf(list); name == "Machine" || name == "VirtualMachine" {
			return errForbidden
		}
		return nil
	}
	inWorld(t, onePool(), "", refused, func(w *world) {
		w.wantAccess("Machine", AccessForbidden, "")
		w.wantAccess("VirtualMachine", AccessForbidden, "")
		w.wantAccess("MachineSet", AccessOK, "")
		if pool, exists := shown[PoolRow](w, "pool/n/pool"); !exists || pool.Replicas != 3 {
			t.Errorf("pool: %t, %+v", exists, pool)
		}
		w.refuse(func(client.ObjectList, string) error { return nil })
		w.pass(retryAccess + 5*time.Second)
		w.wantAccess("Machine", AccessOK, "")
		if _, exists := shown[MachineRow](w, "machine/n/pool-1-a"); !exists {
			t.Error("no machine after the user got the permission")
		}
		w.refuse(refused)
		w.pass(10 * time.Second)
		w.wantAccess("Machine", AccessForbidden, "")
		if _, exists := shown[MachineRow](w, "machine/n/pool-1-a"); exists {
			t.Error("a machine is shown after the user lost the permission")
		}
	})
}

// TestModel_FallsBackToNamespace checks that a user with permissions in one namespace sees its objects.
func TestModel_FallsBackToNamespace(t *testing.T) {
	refused := func(list client.ObjectList, namespace string) error {
		if namespace != "n" {
			return errForbidden
		}
		return nil
	}
	inWorld(t, onePool(), "n", refused, func(w *world) {
		w.wantAccess("Machine", AccessOK, "n")
		w.wantAccess("Node", AccessForbidden, "")
		if _, exists := shown[MachineRow](w, "machine/n/pool-1-a"); !exists {
			t.Error("no machine")
		}
	})
}

// TestModel_KeepsRowsDuringOutage checks that rows remain while the API server does not respond, that the page reports
// the outage, and that rows are current after it.
func TestModel_KeepsRowsDuringOutage(t *testing.T) {
	inWorld(t, onePool(), "", nil, func(w *world) {
		w.refuse(func(client.ObjectList, string) error { return errors.New("connection refused") })
		w.pass(time.Minute)
		w.wantAccess("Machine", AccessLost, "")
		if _, exists := shown[MachineRow](w, "machine/n/pool-1-a"); !exists {
			t.Error("the machine is not shown during the outage")
		}
		if pool, _ := shown[PoolRow](w, "pool/n/pool"); len(pool.Waits) == 0 || pool.Outcome != "Progressing" {
			t.Errorf("the pool does not report the outage: %+v", pool)
		}
		if err := w.Delete(t.Context(), onePool()[2]); err != nil {
			t.Fatal(err)
		}
		w.refuse(func(client.ObjectList, string) error { return nil })
		w.pass(2 * time.Minute)
		w.wantAccess("Machine", AccessOK, "")
		if _, exists := shown[MachineRow](w, "machine/n/pool-1-a"); exists {
			t.Error("a machine that was deleted during the outage is shown")
		}
	})
}

// TestEvents_OfSameSecondKeepTheirOrder checks that events with the same time are always listed in the order in which they were
// recorded.
func TestEvents_OfSameSecondKeepTheirOrder(t *testing.T) {
	objects, want := onePool(), []string{}
	at := metav1.NewTime(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC))
	for i := range 12 {
		on := objects[i%4].GetName()
		reason := fmt.Sprint("Reason", i)
		want = append([]string{reason}, want...) // the latest first
		objects = append(objects, &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Namespace: "n", Name: fmt.Sprintf("%s.%x", on, 0x17f3a0c2d4e5f600+i)},
			InvolvedObject: corev1.ObjectReference{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "Machine", Namespace: "n", Name: on},
			Reason:         reason, LastTimestamp: at,
		})
	}
	inWorld(t, objects, "", nil, func(w *world) {
		for range 10 {
			var got []string
			for _, event := range (&view{model: w.model}).events("n", "", "") {
				got = append(got, event.Reason)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("events (-want +got):\n%s", diff)
			}
		}
	})
}
