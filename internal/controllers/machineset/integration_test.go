package machineset

import (
	"slices"
	"strings"
	"testing"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/scale"
	"github.com/millwright-dev/millwright/test/support/env"
)

// eventually is the timeout for conditions.
const eventually = env.WaitTimeout

// run starts only this controller against a real API server.
func run(t *testing.T, e *env.Env) {
	t.Helper()
	e.RunControllers(t, func(mgr ctrl.Manager, events record.EventRecorder) error {
		return New(Options{
			Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Events: events, Clock: clock.RealClock{}, Concurrency: 2,
		}).SetupWithManager(mgr)
	})
}

func TestMachineSet_InvalidSpecOnServer(t *testing.T) {
	e := env.New(t)
	g := gomega.NewWithT(t)
	set := env.Fresh(e, newSet(2, func(set *v1alpha1.MachineSet) { set.Spec.Selector = nil }))
	g.Expect(e.Client.Create(t.Context(), set)).To(gomega.Succeed())
	run(t, e)

	g.Eventually(func(g gomega.Gomega) {
		g.Expect(e.Client.Get(t.Context(), client.ObjectKeyFromObject(set), set)).To(gomega.Succeed())
		g.Expect(set.Status.Conditions).To(gomega.HaveLen(1))
		g.Expect(set.Status.Conditions[0].Reason).To(gomega.Equal("InvalidSpec"))
	}, eventually).Should(gomega.Succeed())
	sentence := set.Status.Conditions[0].Message
	if !strings.HasPrefix(sentence, "spec.selector: ") || strings.Contains(sentence, "\n") {
		t.Errorf("message %q", sentence)
	}
	g.Eventually(func(g gomega.Gomega) {
		events := &corev1.EventList{}
		g.Expect(e.Client.List(t.Context(), events, client.InNamespace(e.Namespace))).To(gomega.Succeed())
		g.Expect(events.Items).To(gomega.HaveLen(1))
		event := events.Items[0]
		g.Expect([]string{event.InvolvedObject.Name, event.Type, event.Reason, event.Message}).
			To(gomega.Equal([]string{pool, corev1.EventTypeWarning, "InvalidSpec", sentence}))
	}, eventually).Should(gomega.Succeed())

	g.Expect(e.Client.Delete(t.Context(), set)).To(gomega.Succeed())
	g.Eventually(func() bool {
		return apierrors.IsNotFound(e.Client.Get(t.Context(), client.ObjectKeyFromObject(set), set))
	}, eventually).Should(gomega.BeTrue(), "the invalid set was not removed")
}

func TestMachineSet_AdoptsAndReleasesOnServer(t *testing.T) {
	e := env.New(t)
	g := gomega.NewWithT(t)
	lost := env.Fresh(e, machine("lost", ownerless))
	g.Expect(e.Client.Create(t.Context(), lost)).To(gomega.Succeed())
	set := env.Fresh(e, newSet(2))
	g.Expect(e.Client.Create(t.Context(), set)).To(gomega.Succeed())
	run(t, e) // starts only now, since the caches of different kinds are independent

	owned := func(g gomega.Gomega) []string {
		machines := &v1alpha1.MachineList{}
		g.Expect(e.Client.List(t.Context(), machines, client.InNamespace(e.Namespace))).To(gomega.Succeed())
		var names []string
		for i := range machines.Items {
			if metav1.IsControlledBy(&machines.Items[i], set) && machines.Items[i].DeletionTimestamp.IsZero() {
				names = append(names, machines.Items[i].Name)
			}
		}
		return names
	}
	g.Eventually(func(g gomega.Gomega) {
		g.Expect(owned(g)).To(gomega.And(gomega.HaveLen(2), gomega.ContainElement("lost")))
	}, eventually).Should(gomega.Succeed())

	change := []byte(`{"metadata":{"labels":{"name":"elsewhere"}}}`)
	g.Expect(e.Client.Patch(t.Context(), lost, client.RawPatch("application/merge-patch+json", change))).To(gomega.Succeed())
	g.Eventually(func(g gomega.Gomega) {
		g.Expect(owned(g)).To(gomega.And(gomega.HaveLen(2), gomega.Not(gomega.ContainElement("lost"))))
		g.Expect(e.Client.Get(t.Context(), client.ObjectKeyFromObject(lost), lost)).To(gomega.Succeed())
		g.Expect(lost.OwnerReferences).To(gomega.BeEmpty())
		g.Expect(lost.DeletionTimestamp).To(gomega.BeNil())
	}, eventually).Should(gomega.Succeed())

	g.Eventually(func(g gomega.Gomega) {
		g.Expect(e.Client.Get(t.Context(), client.ObjectKeyFromObject(set), set)).To(gomega.Succeed())
		g.Expect(set.Status.Replicas).To(gomega.BeEquivalentTo(2))
		g.Expect(set.Status.FullyLabeledReplicas).To(gomega.BeEquivalentTo(2))
		g.Expect(set.Status.Conditions).To(gomega.BeEmpty())
	}, eventually).Should(gomega.Succeed())
}

// TestMachineSet_UnownedMachinesTriggerPassOnServer checks that an idle set is enqueued for a Machine that it may adopt, and for a
// Machine that was taken from it, although neither names the set as its owner.
func TestMachineSet_UnownedMachinesTriggerPassOnServer(t *testing.T) {
	e := env.New(t)
	g := gomega.NewWithT(t)
	set := env.Fresh(e, newSet(2))
	g.Expect(e.Client.Create(t.Context(), set)).To(gomega.Succeed())
	run(t, e)
	stays := func(m v1alpha1.Machine) bool { return m.DeletionTimestamp.IsZero() }
	atRest := func(machines int) []v1alpha1.Machine {
		t.Helper()
		var owned []v1alpha1.Machine
		g.Eventually(func(g gomega.Gomega) {
			g.Expect(e.Client.Get(t.Context(), client.ObjectKeyFromObject(set), set)).To(gomega.Succeed())
			g.Expect(set.Status.Replicas).To(gomega.BeEquivalentTo(machines))
			list := &v1alpha1.MachineList{}
			g.Expect(e.Client.List(t.Context(), list, client.InNamespace(e.Namespace))).To(gomega.Succeed())
			owned = slices.DeleteFunc(list.Items, func(m v1alpha1.Machine) bool { return !metav1.IsControlledBy(&m, set) })
			g.Expect(owned).To(gomega.HaveLen(machines))
			g.Expect(slices.DeleteFunc(slices.Clone(owned), func(m v1alpha1.Machine) bool { return !stays(m) })).To(gomega.HaveLen(2))
		}, eventually).Should(gomega.Succeed())
		return owned
	}
	atRest(2)
	g.Expect(e.Client.Create(t.Context(), env.Fresh(e, machine("lost", ownerless)))).To(gomega.Succeed())
	adopted := atRest(3) // one of the three is surplus and is deleted
	kept := slices.IndexFunc(adopted, stays)

	// The set creates another Machine in place of one whose owner and labels a user removed.
	taken := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"ownerReferences":null,"labels":{"name":"elsewhere"}}}`))
	g.Expect(e.Client.Patch(t.Context(), &adopted[kept], taken)).To(gomega.Succeed())
	g.Eventually(func(g gomega.Gomega) {
		list := &v1alpha1.MachineList{}
		g.Expect(e.Client.List(t.Context(), list, client.InNamespace(e.Namespace))).To(gomega.Succeed())
		g.Expect(list.Items).To(gomega.HaveLen(4))
	}, eventually).Should(gomega.Succeed())
}

// TestMachineSet_DeletionDuringCreationOnServer deletes a set of 100,000 replicas after the first hundreds exist. At most the
// current batch is still created, and all Machines and the set are deleted.
func TestMachineSet_DeletionDuringCreationOnServer(t *testing.T) {
	t.Parallel()
	e := env.New(t)
	g := gomega.NewWithT(t)
	set := env.Fresh(e, newSet(100_000))
	g.Expect(e.Client.Create(t.Context(), set)).To(gomega.Succeed())
	run(t, e)
	all := func(g gomega.Gomega) []metav1.PartialObjectMetadata {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind("MachineList"))
		g.Expect(e.Client.List(t.Context(), list, client.InNamespace(e.Namespace))).To(gomega.Succeed())
		return list.Items
	}
	g.Eventually(func(g gomega.Gomega) { g.Expect(len(all(g))).To(gomega.BeNumerically(">", 2*scale.Burst)) }, eventually).Should(gomega.Succeed())

	g.Expect(e.Client.Delete(t.Context(), set)).To(gomega.Succeed())
	before := len(all(g))
	most := before
	letGo := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))
	gone := 0
	g.Eventually(func(g gomega.Gomega) { // completes deletions like the machine controller
		machines := all(g)
		most = max(most, gone+len(machines))
		for i := range machines {
			if !machines[i].DeletionTimestamp.IsZero() {
				machines[i].SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind("Machine"))
				g.Expect(client.IgnoreNotFound(e.Client.Patch(t.Context(), &machines[i], letGo))).To(gomega.Succeed())
				gone++
			}
		}
		g.Expect(apierrors.IsNotFound(e.Client.Get(t.Context(), client.ObjectKeyFromObject(set), set))).To(gomega.BeTrue())
	}, 3*eventually).Should(gomega.Succeed())
	if left := len(all(g)); left > 0 {
		t.Errorf("%d machines remain", left)
	}
	if most > before+scale.Burst {
		t.Errorf("%d machines were created after the deletion, want at most the current batch", most-before)
	}
}
