package machineset

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/scale"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// counting counts lists.
type counting struct {
	client.Reader
	lists *atomic.Int32
}

func (c counting) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	c.lists.Add(1)
	return c.Reader.List(ctx, list, opts...)
}

// TestMachineSet_StartWithManySetsOnServer checks that a new process counts the Machines of many sets correctly, without other
// requests than those of the cache.
func TestMachineSet_StartWithManySetsOnServer(t *testing.T) {
	tier.All(t)
	e := env.New(t)
	g := gomega.NewWithT(t)
	const sets = 6
	for i := range sets {
		set := env.Fresh(e, newSet(2))
		set.Name = fmt.Sprintf("set-%d", i)
		label := map[string]string{"name": set.Name}
		set.Spec.Selector, set.Spec.Template.Labels = &metav1.LabelSelector{MatchLabels: label}, label
		g.Expect(e.Client.Create(t.Context(), set)).To(gomega.Succeed())
		for j := range i % 4 { // fewer than desired, as many, and more
			m := env.Fresh(e, machine(fmt.Sprintf("%s-%d", set.Name, j)))
			m.Labels, m.OwnerReferences, m.Finalizers = label, []metav1.OwnerReference{ownerReference(set)}, nil
			g.Expect(e.Client.Create(t.Context(), m)).To(gomega.Succeed())
		}
	}
	var lists atomic.Int32
	e.RunControllers(t, func(mgr ctrl.Manager, events record.EventRecorder) error {
		return New(Options{
			Client: mgr.GetClient(), Live: counting{mgr.GetAPIReader(), &lists}, Events: events, Clock: clock.RealClock{}, Concurrency: 4,
		}).SetupWithManager(mgr)
	})
	g.Eventually(func(g gomega.Gomega) {
		list := &v1alpha1.MachineSetList{}
		g.Expect(e.Client.List(t.Context(), list, client.InNamespace(e.Namespace))).To(gomega.Succeed())
		g.Expect(list.Items).To(gomega.HaveLen(sets))
		for i := range list.Items {
			g.Expect(list.Items[i].Status.ObservedGeneration).To(gomega.BeEquivalentTo(1))
			g.Expect(list.Items[i].Status.Replicas).To(gomega.BeEquivalentTo(2), list.Items[i].Name)
		}
	}, eventually).Should(gomega.Succeed())
	if n := lists.Load(); n != 0 {
		t.Errorf("%d lists from the API server", n)
	}
	machines := &v1alpha1.MachineList{}
	g.Expect(e.Client.List(t.Context(), machines, client.InNamespace(e.Namespace))).To(gomega.Succeed())
	if len(machines.Items) != 2*sets {
		t.Errorf("%d machines, want %d", len(machines.Items), 2*sets)
	}
}

// TestMachineSet_FreezeOnServer checks that two sets for which another client creates Machines are frozen, each in its own
// pass, and are unfrozen when the Machines are gone.
func TestMachineSet_FreezeOnServer(t *testing.T) {
	e := env.New(t)
	g := gomega.NewWithT(t)
	for _, name := range []string{"one", "two"} {
		set := env.Fresh(e, newSet(1))
		set.Name = name
		label := map[string]string{"name": name}
		set.Spec.Selector, set.Spec.Template.Labels = &metav1.LabelSelector{MatchLabels: label}, label
		g.Expect(e.Client.Create(t.Context(), set)).To(gomega.Succeed())
		for i := range 5 {
			m := env.Fresh(e, machine(fmt.Sprintf("%s-%d", name, i)))
			m.Labels, m.OwnerReferences = label, []metav1.OwnerReference{ownerReference(set)}
			g.Expect(e.Client.Create(t.Context(), m)).To(gomega.Succeed())
		}
	}
	e.RunControllers(t, func(mgr ctrl.Manager, events record.EventRecorder) error {
		return New(Options{
			Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Events: events, Clock: clock.RealClock{}, Concurrency: 1,
			Overshoot: &Overshoot{Up: 2, Down: 1},
		}).SetupWithManager(mgr)
	})
	g.Eventually(func(g gomega.Gomega) {
		events := &corev1.EventList{}
		g.Expect(e.Client.List(t.Context(), events, client.InNamespace(e.Namespace))).To(gomega.Succeed())
		got := map[string]int{}
		for i := range events.Items {
			if strings.HasSuffix(events.Items[i].Reason, "rozeMachineSet") {
				got[events.Items[i].Reason+" "+events.Items[i].InvolvedObject.Name]++
			}
		}
		g.Expect(got).To(gomega.Equal(map[string]int{
			"FrozeMachineSet one": 1, "UnfrozeMachineSet one": 1, "FrozeMachineSet two": 1, "UnfrozeMachineSet two": 1,
		}))
		sets := &v1alpha1.MachineSetList{}
		g.Expect(e.Client.List(t.Context(), sets, client.InNamespace(e.Namespace))).To(gomega.Succeed())
		for i := range sets.Items {
			g.Expect(scale.Frozen(&sets.Items[i])).To(gomega.BeFalse())
			g.Expect(sets.Items[i].Status.Conditions).To(gomega.BeEmpty())
		}
	}, eventually).Should(gomega.Succeed())
}
