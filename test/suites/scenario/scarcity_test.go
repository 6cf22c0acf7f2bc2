package scenario

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// faults is the annotation of a class that makes the simulated provider reject calls.
const faults = "sim.millwright.dev/faults"

// zoneClass returns a class whose VMs and nodes are in a zone, with the Secret of a pool.
func zoneClass(namespace, name, pool, zone string) *v1alpha1.MachineClass {
	class := class(namespace, name, `{"zone":"`+zone+`"}`)
	class.SecretRef.Name = pool
	class.NodeTemplate = &v1alpha1.NodeTemplate{
		Capacity:     corev1.ResourceList{"cpu": resource.MustParse("2"), "memory": resource.MustParse("4Gi"), "gpu": resource.MustParse("0")},
		InstanceType: "small", Region: "here", Zone: zone,
	}
	return class
}

// TestMachineDeployment_FallsBackToAnotherZone checks that machines are created in the next zone if a zone has no capacity, and in the first zone
// again when it has capacity. Nodes have the label of their zone.
func TestMachineDeployment_FallsBackToAnotherZone(t *testing.T) {
	tier.All(t)
	w := newScenario(t)
	if err := w.cloud.SetZones("a", "b"); err != nil {
		t.Fatal(err)
	}
	first, second := zoneClass(w.Namespace, "scarce", "scarce", "a"), zoneClass(w.Namespace, "second", "scarce", "b")
	first.Annotations = map[string]string{faults: `[{"method":"CreateMachine","codes":["ResourceExhausted"],"times":-1}]`}
	deployment := deploymentOf(w.Namespace, "scarce", 3)
	deployment.Spec.FallbackClasses = []string{"second"}
	w.create(secret(w.Namespace, "scarce"), first, second, deployment)
	manager := w.manager("--fallback-after", "0s", "--fallback-memory", "1ms")
	w.inZones(deployment, map[string]int{"b": 3})

	w.patchObject(first, `{"metadata":{"annotations":{"`+faults+`":null}}}`)
	w.scale(deployment, 4)
	w.inZones(deployment, map[string]int{"a": 1, "b": 3})
	w.scale(deployment, 6)
	w.inZones(deployment, map[string]int{"a": 3, "b": 3})

	w.patchObject(first, `{"metadata":{"annotations":{"`+faults+`":"[{\"method\":\"CreateMachine\",\"codes\":[\"ResourceExhausted\"],\"times\":-1}]"}}}`)
	w.patch(deployment, `{"spec":{"replicas":8,"fallbackClasses":null},"metadata":{"annotations":{"`+v1alpha1.AnnotationKeyFallbackClasses+`":"second"}}}`)
	w.inZones(deployment, map[string]int{"a": 3, "b": 5})
	w.scale(deployment, 4) // machines of the second choice are deleted first
	w.inZones(deployment, map[string]int{"a": 3, "b": 1})
	manager.Stop()
}

// TestMachineDeployment_SpreadsOverZones checks that machines are spread over zones, even after one of them temporarily had no capacity.
func TestMachineDeployment_SpreadsOverZones(t *testing.T) {
	tier.All(t)
	w := newScenario(t)
	if err := w.cloud.SetZones("a", "b"); err != nil {
		t.Fatal(err)
	}
	first, second := zoneClass(w.Namespace, "spread", "spread", "a"), zoneClass(w.Namespace, "other", "spread", "b")
	deployment := deploymentOf(w.Namespace, "spread", 4)
	deployment.Annotations = map[string]string{v1alpha1.AnnotationKeyFallbackClasses: "other", v1alpha1.AnnotationKeyZoneMaxSkew: "1"}
	w.create(secret(w.Namespace, "spread"), first, second, deployment)
	manager := w.manager("--fallback-after", "0s", "--fallback-memory", "1ms")
	w.inZones(deployment, map[string]int{"a": 2, "b": 2})
	w.patchObject(first, `{"metadata":{"annotations":{"`+faults+`":"[{\"method\":\"CreateMachine\",\"codes\":[\"ResourceExhausted\"],\"times\":-1}]"}}}`)
	w.scale(deployment, 7)
	w.inZones(deployment, map[string]int{"a": 2, "b": 5})
	w.patchObject(first, `{"metadata":{"annotations":{"`+faults+`":null}}}`)
	w.scale(deployment, 8) // one machine probes the zone
	w.inZones(deployment, map[string]int{"a": 3, "b": 5})
	w.scale(deployment, 10)
	w.inZones(deployment, map[string]int{"a": 5, "b": 5})
	manager.Stop()
}

// TestMachineDeployment_ZoneOutage checks that if all machines of a zone are unhealthy, they wait. When the budget permits it, they
// are replaced immediately by machines in another zone.
func TestMachineDeployment_ZoneOutage(t *testing.T) {
	tier.All(t)
	w := newScenario(t)
	if err := w.cloud.SetZones("a", "b"); err != nil {
		t.Fatal(err)
	}
	deployment := deploymentOf(w.Namespace, "outage", 4)
	deployment.Spec.FallbackClasses = []string{"refuge"}
	// Until all of them are unhealthy, the budget prevents individual replacements.
	deployment.Spec.Replacement = &v1alpha1.ReplacementPolicy{Budgets: []v1alpha1.ReplacementBudget{{}}, ZoneOutage: v1alpha1.ZoneOutageWait}
	deployment.Annotations = map[string]string{v1alpha1.AnnotationKeyZoneMaxSkew: "1"}
	w.create(secret(w.Namespace, "outage"), zoneClass(w.Namespace, "outage", "outage", "a"), zoneClass(w.Namespace, "refuge", "outage", "b"), deployment)
	manager := w.manager("--machine-health-timeout", "1s")
	w.inZones(deployment, map[string]int{"a": 2, "b": 2})

	failed := map[string]bool{}
	for _, machine := range w.machines() {
		if machine.Spec.Class.Name == "outage" {
			failed[machine.Name] = true
			w.unhealthy(machine.Labels[v1alpha1.NodeLabelKey])
		}
	}
	w.eventually(func(g gomega.Gomega) {
		for _, machine := range w.machines() {
			operation := machine.Status.LastOperation.Description
			g.Expect(strings.Contains(operation, "all machines in zone a are unhealthy")).To(gomega.Equal(failed[machine.Name]), "%s: %s", machine.Name, operation)
		}
	})

	w.patch(deployment, `{"spec":{"replacement":{"budgets":null,"zoneOutage":"Replace"}}}`)
	w.inZones(deployment, map[string]int{"b": 4})
	for _, machine := range w.machines() {
		if failed[machine.Name] {
			t.Errorf("%s was not replaced", machine.Name)
		}
	}
	manager.Stop()
}

// machines returns all Machines of the namespace.
func (w *scenario) machines() []v1alpha1.Machine {
	w.t.Helper()
	list := &v1alpha1.MachineList{}
	if err := w.Client.List(w.t.Context(), list, client.InNamespace(w.Namespace)); err != nil {
		w.t.Fatal(err)
	}
	return list.Items
}

// unhealthy makes a node report disk pressure.
func (w *scenario) unhealthy(name string) {
	w.t.Helper()
	node := &corev1.Node{}
	node.Name = name
	patch := []byte(`{"status":{"conditions":[{"type":"DiskPressure","status":"True","reason":"Tried"}]}}`)
	if err := w.Target.Client.Status().Patch(w.t.Context(), node, client.RawPatch("application/strategic-merge-patch+json", patch)); err != nil {
		w.t.Fatal(err)
	}
}

// inZones waits until a MachineDeployment has its Machines, with VMs and nodes in these zones.
func (w *scenario) inZones(deployment *v1alpha1.MachineDeployment, want map[string]int) {
	w.t.Helper()
	w.eventually(func(g gomega.Gomega) {
		w.settled(w.t.Context(), g, deployment)
		vms, err := w.cloud.VMs()
		g.Expect(err).NotTo(gomega.HaveOccurred())
		ofVMs, ofNodes := map[string]int{}, map[string]int{}
		for _, vm := range vms {
			ofVMs[vm.Zone]++
			node := &corev1.Node{}
			g.Expect(w.Target.Client.Get(w.t.Context(), client.ObjectKey{Name: vm.NodeName}, node)).To(gomega.Succeed())
			ofNodes[node.Labels[corev1.LabelTopologyZone]]++
		}
		g.Expect(cmp.Diff(want, ofVMs)).To(gomega.BeEmpty(), "VMs")
		g.Expect(cmp.Diff(want, ofNodes)).To(gomega.BeEmpty(), "nodes")
	})
}

// patchObject patches an object.
func (w *scenario) patchObject(object client.Object, patch string) {
	w.t.Helper()
	if err := w.Client.Patch(w.t.Context(), object, client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
		w.t.Fatal(err)
	}
}
