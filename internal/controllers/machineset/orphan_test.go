package machineset

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// collecting is the timeout for the garbage collector, which looks for new kinds every 30 seconds.
const collecting = env.WaitTimeout

// orphaned deletes a set with the propagation policy Orphan.
func orphaned(set *v1alpha1.MachineSet) {
	heldBy(v1alpha1.FinalizerMCM, metav1.FinalizerOrphanDependents)(set)
}

// free removes the owner reference of a Machine like the garbage collector.
func (s *server) free(name string) {
	m := s.all()[name]
	m.OwnerReferences = nil
	must(s.live.Update(testContext, m))
}

// finish removes the finalizer "orphan" of the set like the garbage collector.
func (s *server) finish() {
	set := s.set()
	set.Finalizers = []string{v1alpha1.FinalizerMCM}
	must(s.live.Update(testContext, set))
}

func (s *server) setIsGone() bool {
	err := s.live.Get(testContext, request.NamespacedName, &v1alpha1.MachineSet{})
	return apierrors.IsNotFound(err)
}

// TestMachineSet_OrphaningKeepsMachines checks that an orphaning deletion keeps all Machines in any state, at any
// progress of the garbage collector.
func TestMachineSet_OrphaningKeepsMachines(t *testing.T) {
	s := newServer(newSet(3, orphaned), machine("a"), machine("b", phase(v1alpha1.MachineFailed)))
	c := s.newController()
	pass := func() {
		t.Helper()
		if _, err := c.Reconcile(testContext, request); err != nil {
			t.Fatal(err)
		}
		s.catchUp()
		if !slices.Contains(s.set().Finalizers, v1alpha1.FinalizerMCM) {
			t.Fatal("the finalizer was removed before the garbage collector was done")
		}
	}
	must(s.live.Delete(testContext, s.set()))
	pass()
	s.free("a")
	s.catchUp()
	pass()
	s.free("b")
	pass() // the cache does not show the change
	pass() // nor that the finalizer is gone
	s.finish()
	if _, err := c.Reconcile(testContext, request); err != nil {
		t.Fatal(err)
	}
	if !s.setIsGone() {
		t.Error("the finalizer was not removed")
	}
	s.untouched(t)
}

// untouched checks that the controller has not changed any Machine.
func (s *server) untouched(t *testing.T) {
	t.Helper()
	for name, m := range s.all() {
		if !m.DeletionTimestamp.IsZero() {
			t.Errorf("machine %s was deleted", name)
		}
	}
	for _, write := range s.writes {
		if strings.HasPrefix(write, "create") || strings.HasPrefix(write, "delete") || strings.HasPrefix(write, "patch Machine ") {
			t.Errorf("unexpected write: %s", write)
		}
	}
}

// TestMachineSet_OrphaningReleasesLateMachine checks a Machine that is created after the garbage collector has
// finished with its set.
func TestMachineSet_OrphaningReleasesLateMachine(t *testing.T) {
	s := newServer(newSet(2), machine("a"))
	c := s.newController()
	watch := c.orphaned.Handler()
	seen := func() {
		watch.Update(testContext, event.UpdateEvent{ObjectOld: newSet(2), ObjectNew: s.set()}, nil)
	}
	s.respond = func(verb string, _ client.Object) (error, bool) {
		if verb == "create" {
			s.respond = nil
			set := s.set()
			set.Finalizers = append(set.Finalizers, metav1.FinalizerOrphanDependents)
			must(s.live.Update(testContext, set))
			must(s.live.Delete(testContext, set))
			seen()
			s.free("a")
			s.finish()
			seen()
		}
		return nil, false
	}
	for range 5 {
		if _, err := c.Reconcile(testContext, request); err != nil {
			t.Fatal(err)
		}
		s.catchUp()
	}
	if !s.setIsGone() {
		t.Error("the finalizer was not removed")
	}
	if len(s.all()) != 2 {
		t.Errorf("%d machines remain, want 2", len(s.all()))
	}
	for name, m := range s.all() {
		if !m.DeletionTimestamp.IsZero() || len(m.OwnerReferences) > 0 {
			t.Errorf("machine %s: deletion timestamp %s, owners %v", name, m.DeletionTimestamp, m.OwnerReferences)
		}
	}
	watch.Delete(testContext, event.DeleteEvent{Object: newSet(2)}, nil)
	if c.orphaned.Has(newSet(2)) {
		t.Error("the state of the removed set was not discarded")
	}
}

// TestOrphaning_WithStaleCache checks a cache of sets that is ahead of the cache of Machines.
func TestOrphaning_WithStaleCache(t *testing.T) {
	s := newServer(newSet(1, orphaned), machine("a"))
	c := s.newController()
	must(s.live.Delete(testContext, s.set()))
	s.free("a")
	s.finish()
	result, err := c.Reconcile(testContext, request)
	if err != nil || result.RequeueAfter == 0 {
		t.Errorf("result %v, error %v; want a retry", result, err)
	}
	if !s.all()["a"].DeletionTimestamp.IsZero() {
		t.Fatal("the machine was deleted")
	}
	if s.setIsGone() {
		t.Error("the finalizer was removed before the cache shows that there is no machine")
	}
	if len(s.events.lines) > 0 {
		t.Errorf("events %q", s.events.lines)
	}
	s.catchUp()
	if _, err := c.Reconcile(testContext, request); err != nil {
		t.Fatal(err)
	}
	if !s.setIsGone() {
		t.Error("the finalizer was not removed")
	}
}

// TestMachineSet_DeletionRetriesConflict checks that a conflict during a deletion is retried and not
// reported.
func TestMachineSet_DeletionRetriesConflict(t *testing.T) {
	set := newSet(1, func(set *v1alpha1.MachineSet) { set.Finalizers = []string{v1alpha1.FinalizerMCM} })
	s := newServer(set, machine("a"), machine("b"))
	c := s.newController()
	must(s.live.Delete(testContext, s.set()))
	changed := s.all()["a"]
	changed.Annotations = map[string]string{"new": ""}
	must(s.live.Update(testContext, changed))
	for range 2 {
		if _, err := c.Reconcile(testContext, request); err != nil {
			t.Fatal(err)
		}
		if s.all()["b"].DeletionTimestamp.IsZero() {
			t.Error("the unchanged machine was not deleted")
		}
		s.catchUp()
	}
	for name, m := range s.all() {
		if m.DeletionTimestamp.IsZero() {
			t.Errorf("machine %s was not deleted", name)
		}
		s.vanish(name)
	}
	s.catchUp()
	if _, err := c.Reconcile(testContext, request); err != nil {
		t.Fatal(err)
	}
	if !s.setIsGone() {
		t.Error("the finalizer was not removed")
	}
	if strings.Contains(strings.Join(s.events.lines, "\n"), "FailedDelete") {
		t.Errorf("events %q", s.events.lines)
	}
}

// TestMachineSet_OrphaningOnServer checks with the real garbage collector that Machines outlive an orphaning deletion,
// that the next set of that name adopts them, and that they are deleted with that set in the foreground.
func TestMachineSet_OrphaningOnServer(t *testing.T) {
	tier.All(t)
	t.Parallel()
	e := env.New(t, env.WithControllerManager())
	g := gomega.NewWithT(t)
	run(t, e)
	all := func(g gomega.Gomega) []v1alpha1.Machine {
		list := &v1alpha1.MachineList{}
		g.Expect(e.Client.List(t.Context(), list, client.InNamespace(e.Namespace))).To(gomega.Succeed())
		return list.Items
	}
	known := map[types.UID]bool{}
	begin := func() *v1alpha1.MachineSet {
		set := env.Fresh(e, newSet(3))
		g.Expect(e.Client.Create(t.Context(), set)).To(gomega.Succeed())
		g.Eventually(func(g gomega.Gomega) {
			machines := all(g)
			g.Expect(machines).To(gomega.HaveLen(3))
			for i := range machines {
				g.Expect(metav1.IsControlledBy(&machines[i], set)).To(gomega.BeTrue())
				known[machines[i].UID] = true
			}
			// Now the garbage collector has seen the owners, too.
			g.Expect(e.Client.Get(t.Context(), client.ObjectKeyFromObject(set), set)).To(gomega.Succeed())
			g.Expect(set.Status.Replicas).To(gomega.BeEquivalentTo(3))
		}, eventually).Should(gomega.Succeed())
		return set
	}
	end := func(set *v1alpha1.MachineSet, how metav1.DeletionPropagation, meanwhile func(gomega.Gomega, *v1alpha1.Machine)) {
		g.Expect(e.Client.Delete(t.Context(), set, client.PropagationPolicy(how))).To(gomega.Succeed())
		g.Eventually(func(g gomega.Gomega) {
			machines := all(g)
			for i := range machines {
				meanwhile(g, &machines[i])
			}
			g.Expect(apierrors.IsNotFound(e.Client.Get(t.Context(), client.ObjectKeyFromObject(set), set))).To(gomega.BeTrue())
		}, collecting).Should(gomega.Succeed())
	}
	end(begin(), metav1.DeletePropagationOrphan, func(_ gomega.Gomega, m *v1alpha1.Machine) {
		if !m.DeletionTimestamp.IsZero() {
			t.Fatalf("machine %s was deleted with its set", m.Name)
		}
	})
	left := all(g)
	for i := range left {
		if len(left[i].OwnerReferences) > 0 {
			t.Errorf("machine %s has owner %v", left[i].Name, left[i].OwnerReferences)
		}
	}
	second := begin()
	if len(known) != 3 {
		t.Errorf("%d machines were created in total, want the first 3", len(known))
	}
	letGo := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))
	end(second, metav1.DeletePropagationForeground, func(g gomega.Gomega, m *v1alpha1.Machine) {
		if !m.DeletionTimestamp.IsZero() {
			g.Expect(client.IgnoreNotFound(e.Client.Patch(t.Context(), m, letGo))).To(gomega.Succeed())
		}
	})
	if left := all(g); len(left) > 0 {
		t.Errorf("%d machines remain after the foreground deletion", len(left))
	}
}

// lateClient delays the creation of the first Machine.
type lateClient struct {
	client.Client
	once sync.Once
	// began is closed when the first Machine is about to be created. The test closes proceed to continue.
	began, proceed chan struct{}
}

func (c *lateClient) Create(ctx context.Context, object client.Object, opts ...client.CreateOption) error {
	if _, ok := object.(*v1alpha1.Machine); ok {
		c.once.Do(func() {
			close(c.began)
			<-c.proceed
		})
	}
	return c.Client.Create(ctx, object, opts...)
}

// TestMachineSet_OrphaningDuringCreationOnServer checks with the real garbage collector a Machine that is created after
// the garbage collector has finished with its set.
func TestMachineSet_OrphaningDuringCreationOnServer(t *testing.T) {
	tier.All(t)
	e := env.New(t, env.WithControllerManager())
	g := gomega.NewWithT(t)
	late := &lateClient{began: make(chan struct{}), proceed: make(chan struct{})}
	proceed := sync.OnceFunc(func() { close(late.proceed) })
	defer proceed()
	e.RunControllers(t, func(mgr ctrl.Manager, events record.EventRecorder) error {
		late.Client = mgr.GetClient()
		return New(Options{Client: late, Live: mgr.GetAPIReader(), Events: events, Clock: clock.RealClock{}, Concurrency: 1}).SetupWithManager(mgr)
	})
	set := env.Fresh(e, newSet(1))
	g.Expect(e.Client.Create(t.Context(), set)).To(gomega.Succeed())
	g.Eventually(late.began, eventually).Should(gomega.BeClosed())
	g.Expect(e.Client.Delete(t.Context(), set, client.PropagationPolicy(metav1.DeletePropagationOrphan))).To(gomega.Succeed())
	g.Eventually(func(g gomega.Gomega) {
		g.Expect(e.Client.Get(t.Context(), client.ObjectKeyFromObject(set), set)).To(gomega.Succeed())
		g.Expect(set.Finalizers).To(gomega.Equal([]string{v1alpha1.FinalizerMCM}))
	}, collecting).Should(gomega.Succeed())
	proceed()
	g.Eventually(func(g gomega.Gomega) {
		g.Expect(apierrors.IsNotFound(e.Client.Get(t.Context(), client.ObjectKeyFromObject(set), set))).To(gomega.BeTrue())
	}, collecting).Should(gomega.Succeed())
	list := &v1alpha1.MachineList{}
	g.Expect(e.Client.List(t.Context(), list, client.InNamespace(e.Namespace))).To(gomega.Succeed())
	g.Expect(list.Items).To(gomega.HaveLen(1))
	if m := list.Items[0]; !m.DeletionTimestamp.IsZero() || len(m.OwnerReferences) > 0 {
		t.Errorf("deletion timestamp %s, owners %v", m.DeletionTimestamp, m.OwnerReferences)
	}
}

// TestMachineSet_OrphaningIsDetectedAfterRestart checks that a new process detects an orphaning deletion from the initial
// list of its cache, even if the finalizer is gone before its first pass.
func TestMachineSet_OrphaningIsDetectedAfterRestart(t *testing.T) {
	s := newServer(newSet(1, orphaned), machine("a"))
	must(s.live.Delete(testContext, s.set()))
	c := s.newController()
	c.orphaned.Handler().Create(testContext, event.CreateEvent{Object: s.set()}, nil)
	s.finish() // the garbage collector missed the machine
	for range 3 {
		pass(t, c)
		s.catchUp()
	}
	if m := s.all()["a"]; m == nil || !m.DeletionTimestamp.IsZero() || len(m.OwnerReferences) > 0 {
		t.Errorf("the machine was not released: %+v", m)
	}
}
