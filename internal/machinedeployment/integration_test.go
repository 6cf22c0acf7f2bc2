package machinedeployment

import (
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/env"
)

// eventually is how long a condition may take to come true.
const eventually = 20 * time.Second

// run runs the controller, and no other, against a real API server.
func run(t *testing.T, e *env.Env) {
	t.Helper()
	e.RunControllers(t, func(mgr ctrl.Manager, events record.EventRecorder) error {
		return New(Options{
			Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Events: events, Clock: clock.RealClock{}, Concurrency: 2,
		}).SetupWithManager(mgr)
	})
}

func inNamespace[T client.Object](e *env.Env, object T) T {
	object.SetNamespace(e.Namespace)
	object.SetUID("")
	object.SetCreationTimestamp(metav1.Time{})
	object.SetGeneration(0)
	return object
}

func TestServerInvalidDeployment(t *testing.T) {
	e := env.New(t)
	g := gomega.NewWithT(t)
	deployment := inNamespace(e, newDeployment(2, func(d *v1alpha1.MachineDeployment) { d.Spec.Selector = nil }))
	g.Expect(e.Client.Create(t.Context(), deployment)).To(gomega.Succeed())
	run(t, e)

	g.Eventually(func(g gomega.Gomega) {
		g.Expect(e.Client.Get(t.Context(), client.ObjectKeyFromObject(deployment), deployment)).To(gomega.Succeed())
		g.Expect(deployment.Status.Conditions).To(gomega.HaveLen(1))
		g.Expect(deployment.Status.Conditions[0].Reason).To(gomega.Equal("InvalidSpec"))
	}, eventually).Should(gomega.Succeed())
	sentence := deployment.Status.Conditions[0].Message
	if !strings.HasPrefix(sentence, "spec.selector: ") || strings.Contains(sentence, "\n") {
		t.Errorf("the sentence is %q", sentence)
	}
	g.Eventually(func(g gomega.Gomega) {
		events := &corev1.EventList{}
		g.Expect(e.Client.List(t.Context(), events, client.InNamespace(e.Namespace))).To(gomega.Succeed())
		g.Expect(events.Items).To(gomega.HaveLen(1))
		event := events.Items[0]
		g.Expect([]string{event.InvolvedObject.Name, event.Type, event.Reason, event.Message}).
			To(gomega.Equal([]string{pool, corev1.EventTypeWarning, "InvalidSpec", sentence}))
	}, eventually).Should(gomega.Succeed())
}

func TestServerAdoptsARestoredSet(t *testing.T) {
	e := env.New(t)
	g := gomega.NewWithT(t)
	set := inNamespace(e, setOf("a", 2))
	set.OwnerReferences = nil
	g.Expect(e.Client.Create(t.Context(), set)).To(gomega.Succeed())
	deployment := inNamespace(e, newDeployment(2))
	g.Expect(e.Client.Create(t.Context(), deployment)).To(gomega.Succeed())
	run(t, e) // now, since caches of different kinds are not in step

	g.Eventually(func(g gomega.Gomega) {
		sets := &v1alpha1.MachineSetList{}
		g.Expect(e.Client.List(t.Context(), sets, client.InNamespace(e.Namespace))).To(gomega.Succeed())
		g.Expect(sets.Items).To(gomega.HaveLen(1))
		g.Expect(metav1.IsControlledBy(&sets.Items[0], deployment)).To(gomega.BeTrue())
		g.Expect(e.Client.Get(t.Context(), client.ObjectKeyFromObject(deployment), deployment)).To(gomega.Succeed())
		g.Expect(deployment.Status.ObservedGeneration).To(gomega.Equal(deployment.Generation))
		g.Expect(deployment.Annotations).To(gomega.HaveKeyWithValue(v1alpha1.AnnotationKeyRevision, "1"))
	}, eventually).Should(gomega.Succeed())

	// A label that does not match any more sets it free, and a new one takes its place.
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
