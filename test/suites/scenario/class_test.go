package scenario

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestMachineDeployment_LiveUpdatesToOtherClass changes the classes in the template. Machines whose VMs can be updated are kept, and only
// the others are replaced.
func TestMachineDeployment_LiveUpdatesToOtherClass(t *testing.T) {
	tier.All(t)
	w := newScenario(t)
	deployment := w.pool("follow", 3, `{"pool":"one","tags":{"team":"red"}}`)
	w.patch(deployment, `{"metadata":{"annotations":{"`+v1alpha1.AnnotationKeyUpdateStrategy+`":"Update"}}}`)
	manager := w.manager()
	w.eventually(func(g gomega.Gomega) { w.settled(t.Context(), g, deployment) })
	first := w.namesOf(t, deployment)

	w.otherClass(deployment, "follow-blue", `{"pool":"one","tags":{"team":"blue"}}`)
	w.followed(deployment, "follow-blue", "blue")
	if diff := cmp.Diff(first, w.namesOf(t, deployment)); diff != "" {
		t.Errorf("machines after an update that needs no replacement (-want +got):\n%s", diff)
	}

	w.patchObject(w.machine(first[0]), `{"metadata":{"annotations":{"`+v1alpha1.AnnotationKeyUpdateStrategy+`":""}}}`)
	w.otherClass(deployment, "follow-green", `{"pool":"one","tags":{"team":"green"}}`)
	w.followed(deployment, "follow-green", "green")
	mixed := w.namesOf(t, deployment)
	if slices.Contains(mixed, first[0]) || !slices.Contains(mixed, first[1]) || !slices.Contains(mixed, first[2]) {
		t.Errorf("machines after an update with an exception are %q, before %q", mixed, first)
	}

	w.otherClass(deployment, "follow-pool", `{"tags":{"team":"green"},"pool":"other"}`)
	w.followed(deployment, "follow-pool", "green")
	for _, name := range w.namesOf(t, deployment) {
		if slices.Contains(mixed, name) {
			t.Errorf("machine %s was not replaced", name)
		}
	}
	manager.Stop()
}

// otherClass creates a class with the Secret of a pool, and sets it in the template.
func (w *scenario) otherClass(deployment *v1alpha1.MachineDeployment, name, providerSpec string) {
	w.t.Helper()
	of := class(w.Namespace, name, providerSpec)
	of.SecretRef.Name = deployment.Name
	w.create(of)
	w.patch(deployment, `{"spec":{"template":{"spec":{"class":{"name":"`+name+`"}}}}}`)
}

// followed waits until all machines of a MachineDeployment have a class, and their VMs its tags.
func (w *scenario) followed(deployment *v1alpha1.MachineDeployment, class, team string) {
	w.t.Helper()
	w.eventually(func(g gomega.Gomega) {
		w.settled(w.t.Context(), g, deployment)
		g.Expect(deployment.Status.UpdatedReplicas).To(gomega.Equal(deployment.Spec.Replicas), "updated replicas")
		reasons := []string{}
		for _, condition := range deployment.Status.Conditions {
			reasons = append(reasons, condition.Reason)
		}
		g.Expect(reasons).To(gomega.ContainElement(v1alpha1.DeploymentReasonComplete))
		machines := &v1alpha1.MachineList{}
		g.Expect(w.Client.List(w.t.Context(), machines, client.InNamespace(w.Namespace))).To(gomega.Succeed())
		for _, machine := range machines.Items {
			g.Expect(machine.Spec.Class.Name).To(gomega.Equal(class), machine.Name)
		}
		vms, err := w.cloud.VMs()
		g.Expect(err).NotTo(gomega.HaveOccurred())
		for _, vm := range vms {
			g.Expect(vm.Tags).To(gomega.HaveKeyWithValue("team", team), vm.Machine)
		}
	})
}

func (w *scenario) machine(name string) *v1alpha1.Machine {
	machine := &v1alpha1.Machine{}
	machine.Namespace, machine.Name = w.Namespace, name
	return machine
}

// namesOf returns the sorted names of the machines.
func (w *scenario) namesOf(t *testing.T, deployment *v1alpha1.MachineDeployment) []string {
	t.Helper()
	machines := &v1alpha1.MachineList{}
	if err := w.Client.List(t.Context(), machines, client.InNamespace(deployment.Namespace), client.MatchingLabels(deployment.Spec.Template.Labels)); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, machine := range machines.Items {
		names = append(names, machine.Name)
	}
	slices.Sort(names)
	return names
}
