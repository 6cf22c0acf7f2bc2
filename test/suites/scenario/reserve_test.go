package scenario

import (
	"maps"
	"slices"
	"testing"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestMachineDeployment_ExcessReplicas creates a MachineDeployment with excess Machines, scales it up into them and down, rolls it out,
// and removes the excess.
func TestMachineDeployment_ExcessReplicas(t *testing.T) {
	tier.All(t)
	w := newScenario(t)
	w.create(secret(w.Namespace, "reserve"), class(w.Namespace, "reserve", `{}`))
	deployment := deploymentOf(w.Namespace, "reserve", 2)
	deployment.Spec.ExcessReplicas = ptr.To(intstr.FromString("100%"))
	w.create(deployment)
	manager := w.manager()
	first := w.reserved(deployment, 2, 2)

	w.patch(deployment, `{"spec":{"replicas":3,"excessReplicas":2}}`)
	second := w.reserved(deployment, 3, 2)
	if kept := both(first, second); len(kept) != 1 {
		t.Errorf("of the reserve %v, %v are still in it, want one: the other is for pods now, and a new one came", first, kept)
	}

	w.scale(deployment, 2)
	third := w.reserved(deployment, 2, 2)
	if kept := both(second, third); len(kept) != 1 {
		t.Errorf("of the reserve %v, %v are left, want one: the other went first", second, kept)
	}

	w.patch(deployment, `{"spec":{"template":{"metadata":{"annotations":{"another":"version"}}}}}`)
	w.eventually(func(g gomega.Gomega) {
		g.Expect(w.Client.Get(t.Context(), client.ObjectKeyFromObject(deployment), deployment)).To(gomega.Succeed())
		g.Expect(deployment.Status.UpdatedReplicas).To(gomega.BeEquivalentTo(2))
		g.Expect(deployment.Status.ObservedGeneration).To(gomega.Equal(deployment.Generation))
	})
	if fourth := w.reserved(deployment, 2, 2); len(both(third, fourth)) > 0 {
		t.Errorf("after the rollout, %v are still in the reserve", both(third, fourth))
	}

	w.patch(deployment, `{"spec":{"excessReplicas":null}}`)
	w.reserved(deployment, 2, 0)
	w.eventually(func(g gomega.Gomega) { w.settled(t.Context(), g, deployment) })

	w.patch(deployment, `{"metadata":{"annotations":{"`+v1alpha1.AnnotationKeyExcessReplicas+`":"1","`+v1alpha1.AnnotationKeyExcessNoExecute+`":"true"}}}`)
	for name := range w.reserved(deployment, 2, 1) {
		w.eventually(func(g gomega.Gomega) {
			node := &corev1.Node{}
			g.Expect(w.Target.Client.Get(t.Context(), client.ObjectKey{Name: name}, node)).To(gomega.Succeed())
			g.Expect(effects(node)).To(gomega.ConsistOf(corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute))
		})
	}

	w.patch(deployment, `{"spec":{"replicas":0},"metadata":{"annotations":{"`+v1alpha1.AnnotationKeyExcessReplicas+`":"50%"}}}`)
	w.reserved(deployment, 0, 0) // a percentage of zero
	manager.Stop()
}

// both returns the names that are in both reserves.
func both(one, other map[string]bool) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(one)), func(name string) bool { return !other[name] })
}

// effects returns the effects of the taint of excess Machines.
func effects(node *corev1.Node) (effects []corev1.TaintEffect) {
	for _, taint := range node.Spec.Taints {
		if taint.Key == v1alpha1.TaintKeyExcess {
			effects = append(effects, taint.Effect)
		}
	}
	return effects
}

// reserved waits until a MachineDeployment has that many nodes for Pods and that many in excess, and its status
// counts them separately. It returns the names of the excess nodes.
func (w *scenario) reserved(deployment *v1alpha1.MachineDeployment, replicas, excess int32) map[string]bool {
	w.t.Helper()
	var reserve map[string]bool
	w.eventually(func(g gomega.Gomega) {
		reserve = map[string]bool{}
		g.Expect(w.Client.Get(w.t.Context(), client.ObjectKeyFromObject(deployment), deployment)).To(gomega.Succeed())
		status := deployment.Status
		g.Expect(status.ObservedGeneration).To(gomega.Equal(deployment.Generation))
		g.Expect([]int32{status.Replicas, status.ReadyReplicas, status.AvailableReplicas}).To(gomega.HaveEach(replicas), "replicas, ready and available ones")
		nodes := w.nodesOf(w.t.Context(), g, deployment.Name)
		g.Expect(nodes).To(gomega.HaveLen(int(replicas+excess)), "nodes")
		for i := range nodes {
			_, kept := nodes[i].Annotations[v1alpha1.AnnotationKeyScaleDownDisabled]
			g.Expect(kept).To(gomega.Equal(len(effects(&nodes[i])) > 0), "autoscalers leave the reserve alone, and nothing else")
			if kept {
				reserve[nodes[i].Name] = true
			}
		}
		g.Expect(reserve).To(gomega.HaveLen(int(excess)), "nodes in excess")
	})
	return reserve
}
