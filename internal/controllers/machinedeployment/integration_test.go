package machinedeployment

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// run starts only this controller against a real API server. It returns a client that reads from the controller's
// cache.
func run(t *testing.T, e *env.Env) (cached client.Reader) {
	t.Helper()
	e.RunControllers(t, func(mgr ctrl.Manager, events record.EventRecorder) error {
		cached = mgr.GetCache()
		return New(Options{
			Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Events: events, Clock: clock.RealClock{}, Concurrency: 2,
		}).SetupWithManager(mgr)
	})
	return cached
}

func TestMachineDeployment_AdoptsRestoredSetOnServer(t *testing.T) {
	t.Parallel()
	e := env.New(t)
	g := gomega.NewWithT(t)
	set := env.Fresh(e, fixture.Set("a", 2))
	set.OwnerReferences = nil
	g.Expect(e.Client.Create(t.Context(), set)).To(gomega.Succeed())
	deployment := env.Fresh(e, fixture.Deployment(2))
	g.Expect(e.Client.Create(t.Context(), deployment)).To(gomega.Succeed())
	run(t, e) // starts only now, since the caches of different kinds are independent

	g.Eventually(func(g gomega.Gomega) {
		sets := &v1alpha1.MachineSetList{}
		g.Expect(e.Client.List(t.Context(), sets, client.InNamespace(e.Namespace))).To(gomega.Succeed())
		g.Expect(sets.Items).To(gomega.HaveLen(1))
		g.Expect(metav1.IsControlledBy(&sets.Items[0], deployment)).To(gomega.BeTrue())
		g.Expect(e.Client.Get(t.Context(), client.ObjectKeyFromObject(deployment), deployment)).To(gomega.Succeed())
		g.Expect(deployment.Status.ObservedGeneration).To(gomega.Equal(deployment.Generation))
		g.Expect(deployment.Annotations).To(gomega.HaveKeyWithValue(v1alpha1.AnnotationKeyRevision, "1"))
	}, eventually).Should(gomega.Succeed())

	// A set whose label no longer matches is released, and a new set replaces it.
	change := []byte(`{"metadata":{"labels":{"name":"elsewhere"}}}`)
	g.Expect(e.Client.Patch(t.Context(), set, client.RawPatch("application/merge-patch+json", change))).To(gomega.Succeed())
	g.Eventually(func(g gomega.Gomega) {
		sets := &v1alpha1.MachineSetList{}
		g.Expect(e.Client.List(t.Context(), sets, client.InNamespace(e.Namespace))).To(gomega.Succeed())
		g.Expect(sets.Items).To(gomega.HaveLen(2))
		for i := range sets.Items {
			mine := metav1.IsControlledBy(&sets.Items[i], deployment)
			g.Expect(mine).To(gomega.Equal(sets.Items[i].Name != set.Name))
		}
	}, eventually).Should(gomega.Succeed())
}

// setsDo simulates the MachineSet controller: every set has its desired machines immediately.
func setsDo(t *testing.T, g gomega.Gomega, e *env.Env) map[string]*v1alpha1.MachineSet {
	t.Helper()
	list := &v1alpha1.MachineSetList{}
	g.Expect(e.Client.List(t.Context(), list, client.InNamespace(e.Namespace))).To(gomega.Succeed())
	byClass := map[string]*v1alpha1.MachineSet{}
	for i := range list.Items {
		set := &list.Items[i]
		byClass[set.Spec.Template.Spec.Class.Name] = set
		if !set.DeletionTimestamp.IsZero() {
			set.Finalizers = nil
			g.Expect(client.IgnoreNotFound(e.Client.Update(t.Context(), set))).To(gomega.Succeed())
			continue
		}
		n := set.Spec.Replicas
		if set.Status.ObservedGeneration != set.Generation || set.Status.Replicas != n {
			set.Status = v1alpha1.MachineSetStatus{ObservedGeneration: set.Generation, Replicas: n, ReadyReplicas: n, AvailableReplicas: n, FullyLabeledReplicas: n}
			g.Expect(e.Client.Status().Update(t.Context(), set)).To(gomega.Succeed())
		}
	}
	return byClass
}

// TestMachineDeployment_RolloutAndRollbackOnServer rolls out three classes with a history limit of one, and rolls back to the
// second.
func TestMachineDeployment_RolloutAndRollbackOnServer(t *testing.T) {
	t.Parallel()
	e := env.New(t)
	g := gomega.NewWithT(t)
	deployment := env.Fresh(e, fixture.Deployment(3, fixture.Rolling("1", "0"), func(d *v1alpha1.MachineDeployment) { d.Spec.RevisionHistoryLimit = ptr.To(int32(1)) }))
	g.Expect(e.Client.Create(t.Context(), deployment)).To(gomega.Succeed())
	run(t, e)
	rolledOutTo := func(class, revision string, left ...string) {
		t.Helper()
		g.Eventually(func(g gomega.Gomega) {
			sets := setsDo(t, g, e)
			g.Expect(slices.Sorted(maps.Keys(sets))).To(gomega.Equal(left))
			g.Expect(sets[class].Spec.Replicas).To(gomega.Equal(int32(3)))
			g.Expect(sets[class].Annotations).To(gomega.HaveKeyWithValue(v1alpha1.AnnotationKeyRevision, revision))
			g.Expect(e.Client.Get(t.Context(), client.ObjectKeyFromObject(deployment), deployment)).To(gomega.Succeed())
			g.Expect(progressOf(deployment.Status).Reason).To(gomega.Equal("NewMachineSetAvailable"))
			g.Expect(deployment.Status.ObservedGeneration).To(gomega.Equal(deployment.Generation))
			g.Expect(deployment.Annotations).To(gomega.HaveKeyWithValue(v1alpha1.AnnotationKeyRevision, revision))
		}, 2*eventually, 50*time.Millisecond).Should(gomega.Succeed())
	}
	patch := func(body string) {
		t.Helper()
		g.Expect(e.Client.Patch(t.Context(), deployment, client.RawPatch("application/merge-patch+json", []byte(body)))).To(gomega.Succeed())
	}
	rolledOutTo("a", "1", "a")
	patch(`{"spec":{"template":{"spec":{"class":{"name":"b"}}}}}`)
	rolledOutTo("b", "2", "a", "b")
	patch(`{"spec":{"template":{"spec":{"class":{"name":"c"}}}}}`)
	rolledOutTo("c", "3", "b", "c")
	patch(`{"spec":{"rollbackTo":{"revision":0}}}`)
	rolledOutTo("b", "4", "b", "c")
	if deployment.Spec.RollbackTo != nil {
		t.Errorf("spec.rollbackTo was not removed: %+v", deployment.Spec.RollbackTo)
	}
}

// TestMachineDeployment_MarksNamedMachinesOnServer checks marking with the permissions of the shipped role. The marked Machine must
// trigger the next pass.
func TestMachineDeployment_MarksNamedMachinesOnServer(t *testing.T) {
	t.Parallel()
	e := env.New(t)
	g := gomega.NewWithT(t)
	deployment := env.Fresh(e, fixture.Deployment(2))
	g.Expect(e.Client.Create(t.Context(), deployment)).To(gomega.Succeed())
	cached := run(t, e)
	var set *v1alpha1.MachineSet
	g.Eventually(func(g gomega.Gomega) {
		set = setsDo(t, g, e)["a"]
		g.Expect(set).NotTo(gomega.BeNil())
		g.Expect(set.Status.Replicas).To(gomega.Equal(int32(2)))
	}, eventually).Should(gomega.Succeed())
	machine := env.Fresh(e, fixture.Member(set, "named"))
	machine.Spec.Class = set.Spec.Template.Spec.Class
	g.Expect(e.Client.Create(t.Context(), machine)).To(gomega.Succeed())
	g.Eventually(func(g gomega.Gomega) { // a named Machine that the cache lacks counts as missing
		g.Expect(cached.Get(t.Context(), client.ObjectKeyFromObject(machine), &v1alpha1.Machine{})).To(gomega.Succeed())
	}, eventually).Should(gomega.Succeed())

	change := `{"metadata":{"annotations":{"` + v1alpha1.AnnotationKeyTriggerDeletion + `":"named~` + fixture.Later + `","` +
		v1alpha1.AnnotationKeyLastReplicaChange + `":"` + fixture.Later + `"}},"spec":{"replicas":1}}`
	g.Expect(e.Client.Patch(t.Context(), deployment, client.RawPatch("application/merge-patch+json", []byte(change)))).To(gomega.Succeed())
	g.Eventually(func(g gomega.Gomega) {
		set := setsDo(t, g, e)["a"]
		g.Expect(e.Client.Get(t.Context(), client.ObjectKeyFromObject(machine), machine)).To(gomega.Succeed())
		marked := machine.Annotations[v1alpha1.AnnotationKeyMachinePriority] == "1" && machine.Annotations[v1alpha1.AnnotationKeyMarkedForDeletionTime] == fixture.Later
		if set.Spec.Replicas < 2 && !marked {
			t.Error("the set was scaled before the Machine was marked")
		}
		g.Expect(marked).To(gomega.BeTrue())
		g.Expect(set.Spec.Replicas).To(gomega.Equal(int32(1)))
		g.Expect(set.Annotations).To(gomega.HaveKeyWithValue(v1alpha1.AnnotationKeyLastReplicaChange, fixture.Later))
	}, eventually).Should(gomega.Succeed())
	g.Expect(e.Client.Delete(t.Context(), machine)).To(gomega.Succeed())
	g.Eventually(func(g gomega.Gomega) {
		g.Expect(e.Client.Get(t.Context(), client.ObjectKeyFromObject(deployment), deployment)).To(gomega.Succeed())
		g.Expect(deployment.Annotations).NotTo(gomega.HaveKey(v1alpha1.AnnotationKeyTriggerDeletion))
	}, eventually).Should(gomega.Succeed())
}

// TestMachineDeployment_OverlapOnServer checks that both deployments report an overlap while it lasts, and continue to
// work.
func TestMachineDeployment_OverlapOnServer(t *testing.T) {
	t.Parallel()
	e := env.New(t)
	g := gomega.NewWithT(t)
	deployment := env.Fresh(e, fixture.Deployment(1))
	other := env.Fresh(e, fixture.Deployment(1, func(d *v1alpha1.MachineDeployment) { d.Name = "other" }))
	run(t, e)
	for _, d := range []*v1alpha1.MachineDeployment{deployment, other} {
		g.Expect(e.Client.Create(t.Context(), d)).To(gomega.Succeed())
	}
	message := func(g gomega.Gomega, d *v1alpha1.MachineDeployment) string {
		g.Expect(e.Client.Get(t.Context(), client.ObjectKeyFromObject(d), d)).To(gomega.Succeed())
		g.Expect(d.Status.ObservedGeneration).To(gomega.Equal(d.Generation))
		if at := conditionAt(d.Status, v1alpha1.MachineDeploymentSelectorOverlap); at >= 0 {
			return d.Status.Conditions[at].Message
		}
		return ""
	}
	g.Eventually(func(g gomega.Gomega) {
		g.Expect(message(g, deployment)).To(gomega.HavePrefix("spec.selector: the same machines are selected by other."))
		g.Expect(message(g, other)).To(gomega.HavePrefix("spec.selector: the same machines are selected by pool."))
		events := &corev1.EventList{}
		g.Expect(e.Client.List(t.Context(), events, client.InNamespace(e.Namespace))).To(gomega.Succeed())
		g.Expect(slices.ContainsFunc(events.Items, func(event corev1.Event) bool {
			return event.InvolvedObject.Name == "other" && event.Reason == "SelectorOverlap" && event.Type == corev1.EventTypeWarning
		})).To(gomega.BeTrue())
	}, eventually).Should(gomega.Succeed())

	apart := `{"spec":{"selector":{"matchLabels":{"name":"apart"}},"template":{"metadata":{"labels":{"name":"apart"}}}}}`
	g.Expect(e.Client.Patch(t.Context(), other, client.RawPatch("application/merge-patch+json", []byte(apart)))).To(gomega.Succeed())
	g.Eventually(func(g gomega.Gomega) {
		g.Expect(message(g, deployment)).To(gomega.BeEmpty())
		g.Expect(message(g, other)).To(gomega.BeEmpty())
	}, eventually).Should(gomega.Succeed())
}

// TestMachineDeployment_DeletedSetIsReplacedOnServer checks that another set replaces a deleted set while its machines still exist, within
// the limits of the rollout.
func TestMachineDeployment_DeletedSetIsReplacedOnServer(t *testing.T) {
	t.Parallel()
	e := env.New(t)
	g := gomega.NewWithT(t)
	deployment := env.Fresh(e, fixture.Deployment(3, fixture.Rolling("1", "1")))
	g.Expect(e.Client.Create(t.Context(), deployment)).To(gomega.Succeed())
	run(t, e)
	var first *v1alpha1.MachineSet
	g.Eventually(func(g gomega.Gomega) {
		first = setsDo(t, g, e)["a"]
		g.Expect(first).NotTo(gomega.BeNil())
		g.Expect(first.Status.Replicas).To(gomega.Equal(int32(3)))
	}, eventually).Should(gomega.Succeed())
	g.Expect(e.Client.Delete(t.Context(), first)).To(gomega.Succeed())
	g.Eventually(func(g gomega.Gomega) {
		g.Expect(e.Client.Get(t.Context(), client.ObjectKeyFromObject(first), first)).To(gomega.Succeed())
		first.Status.ObservedGeneration, first.Status.AvailableReplicas = first.Generation, 0
		g.Expect(e.Client.Status().Update(t.Context(), first)).To(gomega.Succeed())
	}, eventually).Should(gomega.Succeed())
	sets := &v1alpha1.MachineSetList{}
	g.Eventually(func(g gomega.Gomega) {
		g.Expect(e.Client.List(t.Context(), sets, client.InNamespace(e.Namespace))).To(gomega.Succeed())
		g.Expect(sets.Items).To(gomega.HaveLen(2))
		for _, set := range sets.Items {
			if set.Name != first.Name {
				g.Expect(set.Spec.Replicas).To(gomega.Equal(int32(1)))
			}
		}
		g.Expect(e.Client.Get(t.Context(), client.ObjectKeyFromObject(deployment), deployment)).To(gomega.Succeed())
		g.Expect(deployment.Status.ObservedGeneration).To(gomega.Equal(deployment.Generation))
		g.Expect(deployment.Status.AvailableReplicas).To(gomega.BeZero())
	}, eventually).Should(gomega.Succeed())
	g.Eventually(func(g gomega.Gomega) { // its finalizer was removed by this controller
		set := setsDo(t, g, e)["a"]
		g.Expect(set.Name).NotTo(gomega.Equal(first.Name))
		g.Expect(set.Status.Replicas).To(gomega.Equal(int32(3)))
		g.Expect(e.Client.Get(t.Context(), client.ObjectKeyFromObject(deployment), deployment)).To(gomega.Succeed())
		g.Expect(progressOf(deployment.Status).Reason).To(gomega.Equal(v1alpha1.DeploymentReasonComplete))
	}, eventually).Should(gomega.Succeed())
}

// TestMachineDeployment_DeletionDuringRolloutOnServer checks that a deletion during a rollout deletes both sets and creates no other.
func TestMachineDeployment_DeletionDuringRolloutOnServer(t *testing.T) {
	t.Parallel()
	e := env.New(t)
	g := gomega.NewWithT(t)
	deployment := env.Fresh(e, fixture.Deployment(4, fixture.Rolling("1", "0")))
	g.Expect(e.Client.Create(t.Context(), deployment)).To(gomega.Succeed())
	run(t, e)
	g.Eventually(func(g gomega.Gomega) {
		sets := setsDo(t, g, e)
		g.Expect(sets).To(gomega.HaveKey("a"))
		g.Expect(sets["a"].Status.Replicas).To(gomega.Equal(int32(4)))
	}, eventually).Should(gomega.Succeed())
	change := `{"spec":{"template":{"spec":{"class":{"name":"b"}}}}}`
	g.Expect(e.Client.Patch(t.Context(), deployment, client.RawPatch("application/merge-patch+json", []byte(change)))).To(gomega.Succeed())
	sets := &v1alpha1.MachineSetList{}
	g.Eventually(func(g gomega.Gomega) {
		g.Expect(e.Client.List(t.Context(), sets, client.InNamespace(e.Namespace))).To(gomega.Succeed())
		g.Expect(sets.Items).To(gomega.HaveLen(2)) // and the second set has no machines
	}, eventually).Should(gomega.Succeed())
	known := map[types.UID]bool{sets.Items[0].UID: true, sets.Items[1].UID: true}
	g.Expect(e.Client.Delete(t.Context(), deployment)).To(gomega.Succeed())
	g.Eventually(func(g gomega.Gomega) {
		for class, set := range setsDo(t, g, e) {
			if !known[set.UID] {
				t.Errorf("a set of class %s was created for a deployment that is being deleted", class)
			}
		}
		err := e.Client.Get(t.Context(), client.ObjectKeyFromObject(deployment), deployment)
		g.Expect(apierrors.IsNotFound(err)).To(gomega.BeTrue())
	}, eventually).Should(gomega.Succeed())
}

// eventually is the timeout for conditions.
const eventually = env.WaitTimeout
