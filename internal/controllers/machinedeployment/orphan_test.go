package machinedeployment

import (
	"context"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/fixture"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// free is what the garbage collector does to a set of such a deployment.
func (s *server) free(name string) {
	set := s.all()[name]
	set.OwnerReferences = nil
	must(s.live.Update(context.Background(), set))
}

// finish is what it does to the deployment at last.
func (s *server) finish() {
	deployment := s.deployment()
	deployment.Finalizers = []string{v1alpha1.FinalizerMCM}
	must(s.live.Update(context.Background(), deployment))
}

func (s *server) isGone() bool {
	return apierrors.IsNotFound(s.live.Get(context.Background(), request.NamespacedName, &v1alpha1.MachineDeployment{}))
}

// TestAnOrphaningDeploymentLeavesItsSets: also in the middle of a rollout, and however far the
// garbage collector is. The next deployment of that name takes them over.
func TestAnOrphaningDeploymentLeavesItsSets(t *testing.T) {
	old, current := fixture.Set("a", 2, fixture.WithUID, fixture.OfRevision("1")), fixture.Set("b", 2, fixture.WithUID, fixture.OfRevision("2"))
	s := newServer(fixture.Deployment(4, orphaned, fixture.OfClass("b"), fixture.Rolling("1", "1")), old, current)
	must(s.live.Delete(t.Context(), s.deployment()))
	for _, set := range []string{old.Name, current.Name} {
		s.pass(t)
		s.free(set)
	}
	s.pass(t)
	if len(s.writes) > 0 {
		t.Errorf("writes before the garbage collector is done: %q", s.writes)
	}
	s.finish()
	s.pass(t)
	if !s.isGone() {
		t.Fatal("the deployment is not let go")
	}
	s.pass(t) // as the event of that makes it
	next := fixture.Deployment(4, fixture.OfClass("b"), fixture.Rolling("1", "1"))
	next.UID = "uid-of-the-next"
	must(s.live.Create(t.Context(), next))
	for range 3 {
		s.pass(t)
	}
	all := s.all()
	if len(all) != 2 {
		t.Errorf("%d sets, want the 2 that were left", len(all))
	}
	for name, set := range all {
		if !set.DeletionTimestamp.IsZero() || !metav1.IsControlledBy(set, next) {
			t.Errorf("set %s is deleted at %v and owned by %v", name, set.DeletionTimestamp, set.OwnerReferences)
		}
	}
}

// TestASetThatTheGarbageCollectorDidNotKnow was created while its deployment was deleted without its
// sets: it stays with its Machines, though no pass saw the finalizer.
func TestASetThatTheGarbageCollectorDidNotKnow(t *testing.T) {
	s := newServer(fixture.Deployment(3, orphaned), fixture.Set("a", 3, fixture.WithUID, mcm), fixture.Set("b", 0, fixture.WithUID, mcm))
	must(s.live.Delete(t.Context(), s.deployment()))
	s.orphaned.Handler().Update(t.Context(), event.UpdateEvent{ObjectOld: fixture.Deployment(3, orphaned), ObjectNew: s.deployment()}, nil)
	s.free("pool-b")
	s.finish()
	for range 2 {
		s.pass(t)
	}
	set := s.all()["pool-a"]
	if set == nil || !set.DeletionTimestamp.IsZero() || len(set.OwnerReferences) > 0 {
		t.Errorf("it does not stay: %+v", set)
	}
	if !s.isGone() {
		t.Error("the deployment is not let go")
	}
}

// showing has the cache show sets as they are now, whatever happens to them.
func (s *server) showing(sets map[string]*v1alpha1.MachineSet) {
	s.Client = interceptor.NewClient(s.live, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			shown, ok := list.(*v1alpha1.MachineSetList)
			if !ok {
				return c.List(ctx, list, opts...)
			}
			for _, name := range slices.Sorted(maps.Keys(sets)) {
				set := sets[name]
				shown.Items = append(shown.Items, *set.DeepCopy())
			}
			return nil
		},
	})
}

// TestAnOrphanThatTheCacheShowsAsOwned: the cache of deployments is ahead of that of sets. The
// set that is still the deployment's goes all the same.
func TestAnOrphanThatTheCacheShowsAsOwned(t *testing.T) {
	for _, free := range []string{"pool-a", "pool-b"} {
		s := newServer(fixture.Deployment(3, orphaned), fixture.Set("a", 3, fixture.WithUID, mcm), fixture.Set("b", 3, fixture.WithUID, mcm))
		must(s.live.Delete(t.Context(), s.deployment()))
		s.showing(s.all())
		s.free(free)
		s.finish()
		if s.pass(t).RequeueAfter == 0 {
			t.Error("the pass is not made again")
		}
		for name, set := range s.all() {
			if deleted := !set.DeletionTimestamp.IsZero(); deleted != (name != free) {
				t.Errorf("%s was let go of; of %s it is %v that it is deleted", free, name, deleted)
			}
		}
		if s.isGone() {
			t.Error("the deployment is let go before its sets are gone")
		}
	}
}

// TestServerOrphansSets: with the real garbage collector, all sets outlive their deployment, the
// next deployment of that name takes them, and they go when that is deleted in the foreground.
// Who is faster, collector or controller, is not the same every time.
func TestServerOrphansSets(t *testing.T) {
	tier.All(t)
	e := env.New(t, env.WithControllerManager())
	g := gomega.NewWithT(t)
	run(t, e)
	known := map[types.UID]bool{}
	begin := func(class string, classes ...string) *v1alpha1.MachineDeployment {
		deployment := env.Fresh(e, fixture.Deployment(4, func(d *v1alpha1.MachineDeployment) { d.Spec.Template.Spec.Class.Name = class }))
		g.Expect(e.Client.Create(t.Context(), deployment)).To(gomega.Succeed())
		awaitSets(t, g, e, deployment, known, classes...)
		g.Eventually(func(g gomega.Gomega) { // so that the garbage collector has seen the owners, too
			setsDo(t, g, e)
			g.Expect(e.Client.Get(t.Context(), client.ObjectKeyFromObject(deployment), deployment)).To(gomega.Succeed())
			g.Expect(progressOf(deployment.Status).Reason).To(gomega.Equal(v1alpha1.DeploymentReasonComplete))
		}, eventually).Should(gomega.Succeed())
		return deployment
	}
	end := func(d *v1alpha1.MachineDeployment, how metav1.DeletionPropagation, meanwhile func(gomega.Gomega)) {
		g.Expect(e.Client.Delete(t.Context(), d, client.PropagationPolicy(how))).To(gomega.Succeed())
		g.Eventually(func(g gomega.Gomega) {
			meanwhile(g)
			g.Expect(apierrors.IsNotFound(e.Client.Get(t.Context(), client.ObjectKeyFromObject(d), d))).To(gomega.BeTrue())
		}, collecting).Should(gomega.Succeed())
	}
	all := func(g gomega.Gomega) []v1alpha1.MachineSet {
		list := &v1alpha1.MachineSetList{}
		g.Expect(e.Client.List(t.Context(), list, client.InNamespace(e.Namespace))).To(gomega.Succeed())
		return list.Items
	}
	first := begin("a", "a")
	change := `{"spec":{"template":{"spec":{"class":{"name":"b"}}}}}`
	g.Expect(e.Client.Patch(t.Context(), first, client.RawPatch(types.MergePatchType, []byte(change)))).To(gomega.Succeed())
	awaitSets(t, g, e, first, known, "a", "b")
	last := first
	for range 8 {
		end(last, metav1.DeletePropagationOrphan, func(gomega.Gomega) {})
		sets := all(g)
		for _, set := range sets {
			if !known[set.UID] || !set.DeletionTimestamp.IsZero() || len(set.OwnerReferences) > 0 {
				t.Errorf("set %s is deleted at %v, and left with owner %v", set.Name, set.DeletionTimestamp, set.OwnerReferences)
			}
		}
		if len(sets) != 2 {
			t.Fatalf("%d sets are left, want 2", len(sets))
		}
		last = begin("b", "a", "b")
	}
	if len(known) != 2 {
		t.Errorf("%d sets were made in all, want the first 2", len(known))
	}
	end(last, metav1.DeletePropagationForeground, func(g gomega.Gomega) { setsDo(t, g, e) })
	if left := all(g); len(left) > 0 {
		t.Errorf("%d sets are left after a deletion in the foreground", len(left))
	}
}

// awaitSets waits until the deployment has sets of those classes and no others, and takes note
// of them.
func awaitSets(t *testing.T, g gomega.Gomega, e *env.Env, d *v1alpha1.MachineDeployment, known map[types.UID]bool, classes ...string) {
	t.Helper()
	g.Eventually(func(g gomega.Gomega) {
		sets := setsDo(t, g, e)
		for _, set := range sets {
			g.Expect(metav1.IsControlledBy(set, d)).To(gomega.BeTrue())
			known[set.UID] = true
		}
		g.Expect(slices.Sorted(maps.Keys(sets))).To(gomega.Equal(classes))
	}, eventually).Should(gomega.Succeed())
}

// collecting is how long the garbage collector may take. It looks for new kinds of objects
// every 30 seconds.
const collecting = env.WaitTimeout

// orphaned is a deployment that is deleted with the finalizer "orphan".
func orphaned(d *v1alpha1.MachineDeployment) {
	d.Finalizers = []string{v1alpha1.FinalizerMCM, metav1.FinalizerOrphanDependents}
}

// mcm is a set that its controller has seen.
func mcm(set *v1alpha1.MachineSet) { set.Finalizers = []string{v1alpha1.FinalizerMCM} }

// TestASetThatIsGoneIsNotSaid: the cache did not show it yet.
func TestASetThatIsGoneIsNotSaid(t *testing.T) {
	s := newServer(fixture.Deployment(3), fixture.Set("a", 3, fixture.WithUID))
	s.Target = nil
	s.pass(t)
	s.pass(t)
	before := s.deployment().Status
	s.change(func(d *v1alpha1.MachineDeployment) { d.Spec.Replicas = 5 })
	s.refuse = refusedSets(apierrors.NewNotFound(v1alpha1.SchemeGroupVersion.WithResource("machinesets").GroupResource(), "pool-a"))
	if s.pass(t).RequeueAfter == 0 {
		t.Error("it does not try again")
	}
	if diff := cmp.Diff(before, s.deployment().Status); diff != "" {
		t.Errorf("the status changed:\n%s", diff)
	}
}

// TestASetThatIsBeingDeletedIsNotAdopted: it has an end of its own.
func TestASetThatIsBeingDeletedIsNotAdopted(t *testing.T) {
	s := newServer(fixture.Deployment(1, fixture.OfClass("b")), fixture.Set("a", 1, fixture.WithUID, mcm, fixture.Leaving, func(set *v1alpha1.MachineSet) { set.OwnerReferences = nil }))
	s.pass(t)
	s.pass(t)
	if owners := s.all()["pool-a"].OwnerReferences; len(owners) > 0 {
		t.Errorf("it was adopted: %v", owners)
	}
}
