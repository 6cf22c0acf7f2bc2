package capi

import (
	"slices"
	"testing"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// M9, S32, S33: the provider deletes the VM of a machine that was ready. When its node becomes silent, the driver
// is queried. The loss is reported, to the core too, and no other VM is created. The status stays ready. When the
// VM is found again, the machine recovers.
func TestMillwrightMachine_LostVMIsReportedAndFoundAgain(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newHarness(t)
	h.manager()
	h.pool("workers", 0, `{}`)
	one, two := h.own("one"), h.own("two")
	h.machine(one, `{"driver":"sim","providerSpec":{}}`, data)
	h.machine(two, `{"driver":"sim","providerSpec":{}}`, data)
	h.eventually(func(g gomega.Gomega) {
		for _, machine := range h.settled(g, 2) {
			g.Expect(condition(&machine, "NodeHealthy")).To(gomega.HaveKeyWithValue("status", "True"), machine.GetName())
		}
	})
	vms, err := h.cloud.VMs()
	if err != nil {
		t.Fatal(err)
	}
	if gone, err := h.cloud.Vanish(one); err != nil || gone != 1 {
		t.Fatalf("%d VMs vanished, %v", gone, err)
	}
	h.eventually(func(g gomega.Gomega) {
		h.goesSilent(g, one)
		ours := h.isReady(g, one, "False", "InstanceLost")
		g.Expect(condition(ours, "Ready")).To(gomega.HaveKeyWithValue("message", gomega.ContainSubstring(text(*ours, "spec", "providerID"))))
		h.staysProvisioned(g, ours)
		machine := h.get(g, "Machine", one)
		g.Expect(condition(machine, "InfrastructureReady")).To(gomega.And(
			gomega.HaveKeyWithValue("status", "False"), gomega.HaveKeyWithValue("reason", "InstanceLost")))
		g.Expect(text(*machine, "status", "phase")).To(gomega.Equal("Running"))
		g.Expect(h.vms(g)).To(gomega.Equal([]string{two}))
		h.isReady(g, two, "True", "Provisioned")
	})

	vanished := slices.IndexFunc(vms, func(vm sim.VM) bool { return vm.Machine == one })
	if _, err := h.cloud.Add(vms[vanished]); err != nil {
		t.Fatal(err)
	}
	h.eventually(func(g gomega.Gomega) {
		h.staysProvisioned(g, h.isReady(g, one, "True", "Provisioned"))
		g.Expect(condition(h.get(g, "Machine", one), "InfrastructureReady")).To(gomega.HaveKeyWithValue("status", "True"))
	})
	entries, err := h.cloud.Journal()
	if err != nil {
		t.Fatal(err)
	}
	for machine, history := range sim.Histories(entries) {
		if len(history.ProviderIDs) != 1 {
			t.Errorf("%s had the VMs %v", machine, history.ProviderIDs)
		}
	}
	h.remove("Machine", one)
	h.remove("Machine", two)
	h.eventually(func(g gomega.Gomega) { h.settled(g, 0) })
}

// goesSilent sets a node's conditions as the node controller does about a minute after the last heartbeat: all of them,
// which older cores require. It changes the node at each call, because the core ignores a change of the node that its cache
// has before the Machine's nodeRef.
func (h *harness) goesSilent(g gomega.Gomega, name string) {
	node := h.node(g, name)
	for i := range node.Status.Conditions {
		condition := &node.Status.Conditions[i]
		if condition.Status != corev1.ConditionUnknown {
			condition.Status, condition.Reason, condition.LastTransitionTime = corev1.ConditionUnknown, "NodeStatusUnknown", metav1.Now()
		}
		condition.LastHeartbeatTime = metav1.Now()
	}
	g.Expect(h.Client.Status().Update(h.t.Context(), node)).To(gomega.Succeed())
}

// staysProvisioned checks that the object stays provisioned and that nothing has failed permanently.
func (h *harness) staysProvisioned(g gomega.Gomega, ours *unstructured.Unstructured) {
	ready, _, _ := unstructured.NestedBool(ours.Object, "status", "ready")
	provisioned, _, _ := unstructured.NestedBool(ours.Object, "status", "initialization", "provisioned")
	g.Expect(ready && provisioned).To(gomega.BeTrue())
	g.Expect(text(*ours, "status", "failureReason")).To(gomega.BeEmpty())
}
