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

// free removes the owner reference of a set like the garbage collector.
func (s *server) free(name string) {
	set := s.all()[name]
	set.OwnerReferences = nil
	must(s.live.Update(context.Background(), set))
}

// finish removes the finalizer "orphan" of the deployment like the garbage collector.
func (s *server) finish() {
	deployment := s.deployment()
	deployment.Finalizers = []string{v1alpha1.FinalizerMCM}
	must(s.live.Update(context.Background(), deployment))
}

func (s *server) isGone() bool {
	return apierrors.IsNotFound(s.live.Get(context.Background(), request.NamespacedName, &v1alpha1.MachineDeployment{}))
}

// TestMachineDeployment_OrphaningKeepsSets checks that an orphaning deletion keeps the sets, also during a rollout
// and at any progress of the garbage collector. The next deployment with that name adopts them.
func TestMachineDeployment_OrphaningKeepsSets(t *testing.T) {
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
		t.Fatal("the finalizer was not removed")
	}
	s.pass(t) // its event triggers this pass
	next := fixture.Deployment(4, fixture.OfClass("b"), fixture.Rolling("1", "1"))
	next.UID = "uid-of-the-next"
	must(s.live.Create(t.Context(), next))
	for range 3 {
		s.pass(t)
	}
	all := s.all()
	if len(all) != 2 {
		t.Errorf("%d sets, want the 2 remaining ones", len(all))
	}
	for name, set := range all {
		if !set.DeletionTimestamp.IsZero() || !metav1.IsControlledBy(set, next) {
			t.Errorf("set %s: deletion timestamp %v, owners %v", name, set.DeletionTimestamp, set.OwnerReferences)
		}
	}
}

// TestMachineDeployment_OrphaningReleasesLateSet checks a set that was created during an orphaning deletion. It remains
// with its Machines, although no pass saw the finalizer.
func TestMachineDeployment_OrphaningReleasesLateSet(t *testing.T) {
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
		t.Errorf("the set was not kept: %+v", set)
	}
	if !s.isGone() {
		t.Error("the finalizer was not removed")
	}
}

// showing keeps the given versions of sets in the cache.
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

// TestOrphaning_WithStaleCache checks a cache of deployments that is ahead of the cache of sets. A set
// that still belongs to the deployment is deleted.
func TestOrphaning_WithStaleCache(t *testing.T) {
	for _, free := range []string{"pool-a", "pool-b"} {
		s := newServer(fixture.Deployment(3, orphaned), fixture.Set("a", 3, fixture.WithUID, mcm), fixture.Set("b", 3, fixture.WithUID, mcm))
		must(s.live.Delete(t.Context(), s.deployment()))
		s.showing(s.all())
		s.free(free)
		s.finish()
		if s.pass(t).RequeueAfter == 0 {
			t.Error("no retry is scheduled")
		}
		for name, set := range s.all() {
			if deleted := !set.DeletionTimestamp.IsZero(); deleted != (name != free) {
				t.Errorf("%s was released; %s is deleted: %v", free, name, deleted)
			}
		}
		if s.isGone() {
			t.Error("the finalizer was removed before the sets were gone")
		}
	}
}

// TestMachineDeployment_OrphaningOnServer checks with the real garbage collector that sets outlive an orphaning deletion, that the
// next deployment with that name adopts them, and that they are deleted with it in the foreground. Whether the
// garbage collector or the controller is faster varies.
func TestMachineDeployment_OrphaningOnServer(t *testing.T) {
	tier.All(t)
	e := env.New(t, env.WithControllerManager())
	g := gomega.NewWithT(t)
	run(t, e)
	known := map[types.UID]bool{}
	begin := func(class string, classes ...string) *v1alpha1.MachineDeployment {
		deployment := env.Fresh(e, fixture.Deployment(4, func(d *v1alpha1.MachineDeployment) { d.Spec.Template.Spec.Class.Name = class }))
		g.Expect(e.Client.Create(t.Context(), deployment)).To(gomega.Succeed())
		awaitSets(t, g, e, deployment, known, classes...)
		g.Eventually(func(g gomega.Gomega) { // waits until the garbage collector has seen the owners, too
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
				t.Errorf("set %s: deletion timestamp %v, owners %v", set.Name, set.DeletionTimestamp, set.OwnerReferences)
			}
		}
		if len(sets) != 2 {
			t.Fatalf("%d sets remain, want 2", len(sets))
		}
		last = begin("b", "a", "b")
	}
	if len(known) != 2 {
		t.Errorf("%d sets were created in total, want the first 2", len(known))
	}
	end(last, metav1.DeletePropagationForeground, func(g gomega.Gomega) { setsDo(t, g, e) })
	if left := all(g); len(left) > 0 {
		t.Errorf("%d sets remain after the foreground deletion", len(left))
	}
}

// awaitSets waits until the deployment has exactly the sets of the given classes, and records their UIDs.
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

// collecting is the timeout for the garbage collector, which looks for new kinds every 30 seconds.
const collecting = env.WaitTimeout

// orphaned deletes a deployment with the propagation policy Orphan.
func orphaned(d *v1alpha1.MachineDeployment) {
	d.Finalizers = []string{v1alpha1.FinalizerMCM, metav1.FinalizerOrphanDependents}
}

// mcm adds the finalizer of the MachineSet controller to a set.
func mcm(set *v1alpha1.MachineSet) { set.Finalizers = []string{v1alpha1.FinalizerMCM} }

// TestMachineDeployment_MissingSetIsNotReported checks that a set that no longer exists is not reported if the cache still contains
// it.
func TestMachineDeployment_MissingSetIsNotReported(t *testing.T) {
	s := newServer(fixture.Deployment(3), fixture.Set("a", 3, fixture.WithUID))
	s.Target = nil
	s.pass(t)
	s.pass(t)
	before := s.deployment().Status
	s.change(func(d *v1alpha1.MachineDeployment) { d.Spec.Replicas = 5 })
	s.refuse = refusedSets(apierrors.NewNotFound(v1alpha1.SchemeGroupVersion.WithResource("machinesets").GroupResource(), "pool-a"))
	if s.pass(t).RequeueAfter == 0 {
		t.Error("no retry is scheduled")
	}
	if diff := cmp.Diff(before, s.deployment().Status); diff != "" {
		t.Errorf("the status changed:\n%s", diff)
	}
}

// TestMachineDeployment_DeletedSetIsNotAdopted checks that a deployment does not adopt a set that is being deleted.
func TestMachineDeployment_DeletedSetIsNotAdopted(t *testing.T) {
	s := newServer(fixture.Deployment(1, fixture.OfClass("b")), fixture.Set("a", 1, fixture.WithUID, mcm, fixture.Leaving, func(set *v1alpha1.MachineSet) { set.OwnerReferences = nil }))
	s.pass(t)
	s.pass(t)
	if owners := s.all()["pool-a"].OwnerReferences; len(owners) > 0 {
		t.Errorf("the set was adopted: %v", owners)
	}
}
