package scenario

import (
	"testing"

	"github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestMachineDeployment_RollingUpdate changes the class of a MachineDeployment. At any time, the number of machines must not exceed
// replicas plus surge, and no machine may be missing.
func TestMachineDeployment_RollingUpdate(t *testing.T) {
	tier.All(t)
	const desired, surge = 4, 1
	w := newScenario(t)
	w.create(secret(w.Namespace, "roll"), class(w.Namespace, "roll", `{}`), class(w.Namespace, "roll-v2", `{}`))
	deployment := deploymentOf(w.Namespace, "roll", desired)
	deployment.Spec.Template.Spec.Class.Name = "roll"
	none, one := intstr.FromInt32(0), intstr.FromInt32(surge)
	deployment.Spec.Strategy = v1alpha1.MachineDeploymentStrategy{
		Type:          v1alpha1.RollingUpdateMachineDeploymentStrategyType,
		RollingUpdate: &v1alpha1.RollingUpdateMachineDeployment{UpdateConfiguration: v1alpha1.UpdateConfiguration{MaxUnavailable: &none, MaxSurge: &one}},
	}
	w.patch(class(w.Namespace, "roll-v2", ""), `{"secretRef":{"name":"roll"}}`)
	w.create(deployment)
	w.manager()
	w.eventually(func(g gomega.Gomega) { w.settled(t.Context(), g, deployment) })

	w.patch(deployment, `{"spec":{"template":{"spec":{"class":{"name":"roll-v2"}}}}}`)
	w.eventually(func(g gomega.Gomega) {
		machines := &v1alpha1.MachineList{}
		g.Expect(w.Client.List(t.Context(), machines, client.InNamespace(w.Namespace))).To(gomega.Succeed())
		running, updated := 0, 0
		for _, machine := range machines.Items {
			if machine.DeletionTimestamp.IsZero() && machine.Status.CurrentStatus.Phase == v1alpha1.MachineRunning {
				running++
			}
			if machine.Spec.Class.Name == "roll-v2" {
				updated++
			}
		}
		if len(machines.Items) > desired+surge {
			t.Errorf("%d machines exist, at most %d may", len(machines.Items), desired+surge)
		}
		if running < desired {
			t.Errorf("%d machines are running, at least %d have to", running, desired)
		}
		g.Expect(updated).To(gomega.Equal(desired), "machines of the new class")
		w.settled(t.Context(), g, deployment)
	})
}
