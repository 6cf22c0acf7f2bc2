package takeover

import (
	"testing"

	"github.com/onsi/gomega"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestScaleSubresource scales up and down as kubectl scale and autoscalers do: through the scale subresource,
// which reports the number of Machines and their label selector.
func TestScaleSubresource(t *testing.T) {
	tier.All(t)
	t.Parallel()
	f := begin(t, "20-running", "scaled")
	for _, desired := range []int32{4, 6, 1} {
		scale := &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: desired}}
		must(t, f.Client.SubResource("scale").Update(t.Context(), f.deployment, client.WithSubResourceBody(scale)))
		gomega.NewWithT(t).Eventually(func(g gomega.Gomega) {
			scale := &autoscalingv1.Scale{}
			g.Expect(f.Client.SubResource("scale").Get(t.Context(), f.deployment, scale)).To(gomega.Succeed())
			g.Expect(scale.Status.Replicas).To(gomega.Equal(desired))
			selector, err := labels.Parse(scale.Status.Selector)
			g.Expect(err).NotTo(gomega.HaveOccurred())
			machines := &v1alpha1.MachineList{}
			g.Expect(f.Client.List(t.Context(), machines, client.InNamespace(f.Namespace), client.MatchingLabelsSelector{Selector: selector})).To(gomega.Succeed())
			g.Expect(machines.Items).To(gomega.HaveLen(int(desired)))
			for i := range machines.Items {
				g.Expect(machines.Items[i].Status.CurrentStatus.Phase).To(gomega.Equal(v1alpha1.MachineRunning))
			}
		}).WithTimeout(waitTimeout).Should(gomega.Succeed())
	}
}
