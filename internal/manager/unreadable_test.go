package manager

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/test/support/env"
)

// TestUnreadable_GetsEvent checks that an object that cannot be decoded, which blocks all objects of its
// kind, gets an event, and that the others are processed once it is corrected.
func TestUnreadable_GetsEvent(t *testing.T) {
	e := env.New(t)
	g := gomega.NewWithT(t)
	bad := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"nodeTemplate": map[string]any{"metadata": map[string]any{"creationTimestamp": "yesterday"}},
	}}}
	bad.SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind("Machine"))
	bad.SetNamespace(e.Namespace)
	bad.SetName("bad")
	good := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: "good"}}
	good.Spec.Class = v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: "missing"}
	for _, object := range []client.Object{bad, good} {
		g.Expect(e.Client.Create(t.Context(), object)).To(gomega.Succeed())
	}

	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- Run(ctx, Config{
			Control: e.UserWith(t, "config/rbac/control-role.yaml"),
			Drivers: registry.Only(registry.AnyProvider, sim.New(sim.Config{})),
			Log:     testr.New(t),
			Settings: Settings{
				Namespace:       e.Namespace,
				ConcurrentSyncs: 5,
				MachineSettings: MachineSettings{CreationTimeout: time.Minute},
			},
		})
	}()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the manager returned %v", err)
		}
	}()
	g.Eventually(func(g gomega.Gomega) {
		events := &corev1.EventList{}
		g.Expect(e.Client.List(t.Context(), events, client.InNamespace(e.Namespace))).To(gomega.Succeed())
		var reported []string
		for i := range events.Items {
			if event := &events.Items[i]; event.Reason == "Unreadable" {
				reported = append(reported, event.InvolvedObject.Kind+" "+event.InvolvedObject.Name)
				g.Expect(strings.Contains(event.Message, `"yesterday"`)).To(gomega.BeTrue(), event.Message)
			}
		}
		g.Expect(reported).To(gomega.Equal([]string{"Machine bad"}))
	}).WithTimeout(env.WaitTimeout).Should(gomega.Succeed())
	g.Expect(e.Client.Get(t.Context(), client.ObjectKeyFromObject(good), good)).To(gomega.Succeed())
	g.Expect(good.Status.CurrentStatus.Phase).To(gomega.BeEmpty())

	g.Expect(e.Client.Delete(t.Context(), bad)).To(gomega.Succeed())
	g.Eventually(func(g gomega.Gomega) {
		g.Expect(e.Client.Get(t.Context(), client.ObjectKeyFromObject(good), good)).To(gomega.Succeed())
		g.Expect(good.Status.CurrentStatus.Phase).To(gomega.Equal(v1alpha1.MachineCrashLoopBackOff))
	}).WithTimeout(env.WaitTimeout).Should(gomega.Succeed())
}
