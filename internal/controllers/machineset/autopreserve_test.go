package machineset

import (
	"testing"

	"github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/preservation"
	"github.com/millwright-dev/millwright/test/support/env"
)

// TestMachineSet_AutoPreservesOnServer checks that a set preserves as many failed Machines as its spec allows and replaces the
// others, and that it stops preserving Machines when the spec changes.
func TestMachineSet_AutoPreservesOnServer(t *testing.T) {
	t.Parallel()
	e := env.New(t)
	g := gomega.NewWithT(t)
	set := env.Fresh(e, newSet(3, func(set *v1alpha1.MachineSet) { set.Spec.AutoPreserveFailedMachineMax = 1 }))
	g.Expect(e.Client.Create(t.Context(), set)).To(gomega.Succeed())
	run(t, e)
	list := func(g gomega.Gomega) []v1alpha1.Machine {
		machines := &v1alpha1.MachineList{}
		g.Expect(e.Client.List(t.Context(), machines, client.InNamespace(e.Namespace))).To(gomega.Succeed())
		return machines.Items
	}
	var first []v1alpha1.Machine
	g.Eventually(func(g gomega.Gomega) {
		first = list(g)
		g.Expect(first).To(gomega.HaveLen(3))
	}, eventually).Should(gomega.Succeed())
	for i := range first {
		first[i].Status.CurrentStatus.Phase = v1alpha1.MachineFailed
		g.Expect(e.Client.Status().Update(t.Context(), &first[i])).To(gomega.Succeed())
	}
	kept := func(g gomega.Gomega) (annotated, staying int) {
		for _, machine := range list(g) {
			failed := machine.Status.CurrentStatus.Phase == v1alpha1.MachineFailed && machine.DeletionTimestamp.IsZero()
			if failed {
				staying++
			}
			if machine.Annotations[v1alpha1.AnnotationKeyPreserve] == preservation.AutoPreserved {
				annotated++
			}
		}
		g.Expect(annotated).To(gomega.BeNumerically("<=", 1))
		return annotated, staying
	}
	g.Eventually(func(g gomega.Gomega) {
		annotated, staying := kept(g)
		g.Expect([]int{annotated, staying}).To(gomega.Equal([]int{1, 1}))
		g.Expect(e.Client.Get(t.Context(), client.ObjectKeyFromObject(set), set)).To(gomega.Succeed())
		g.Expect([]int32{set.Status.AutoPreserveFailedMachineCount, set.Status.PreservedFailedReplicas}).To(gomega.Equal([]int32{1, 1}))
	}, eventually).Should(gomega.Succeed())

	none := []byte(`{"spec":{"autoPreserveFailedMachineMax":0}}`)
	g.Expect(e.Client.Patch(t.Context(), set, client.RawPatch("application/merge-patch+json", none))).To(gomega.Succeed())
	g.Eventually(func(g gomega.Gomega) {
		annotated, staying := kept(g)
		g.Expect([]int{annotated, staying}).To(gomega.Equal([]int{0, 0}))
	}, eventually).Should(gomega.Succeed())
}

// TestMachineSet_AutoPreservationWithStaleCache checks that while the cache lacks a preservation, a set preserves no more
// Machines, and deletes none that it might preserve.
func TestMachineSet_AutoPreservationWithStaleCache(t *testing.T) {
	failed := phase(v1alpha1.MachineFailed)
	s := newServer(newSet(2, func(set *v1alpha1.MachineSet) { set.Spec.AutoPreserveFailedMachineMax = 1 }), machine("a", failed), machine("b", phase(v1alpha1.MachineRunning)))
	s.catchUp()
	c := s.newController()
	preserved := func() (names []string) {
		for _, name := range []string{"a", "b"} {
			if m := s.all()[name]; m != nil && metav1.HasAnnotation(m.ObjectMeta, v1alpha1.AnnotationKeyPreserve) {
				names = append(names, name)
			}
		}
		return names
	}
	if _, err := c.Reconcile(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	if got := preserved(); len(got) != 1 || got[0] != "a" {
		t.Fatalf("preserved: %v, want a", got)
	}
	b := s.all()["b"]
	failed(b)
	must(s.live.Update(testContext, b))
	s.show("b") // but not the change of a
	if _, err := c.Reconcile(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	if got := preserved(); len(got) != 1 || len(s.leaving()) != 0 {
		t.Errorf("preserved: %v, deleted: %v; want no change", got, s.leaving())
	}
	s.catchUp()
	if _, err := c.Reconcile(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	if got := preserved(); len(got) != 1 || len(s.leaving()) != 1 {
		t.Errorf("preserved: %v, deleted: %v; want a preserved and b deleted", got, s.leaving())
	}
}
