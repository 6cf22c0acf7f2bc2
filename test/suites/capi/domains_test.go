package capi

import (
	"fmt"
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// C4, M6: the driver reports its zones, the core reads them, and machines without a zone are created there.
func TestFailureDomains_ComeFromDriver(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newHarness(t)
	h.zones("east", "west")
	h.patch("MillwrightCluster", h.cluster, `{"spec":{"failureDomains":[{"name":"west","controlPlane":false}],"failureDomainsFrom":{"driver":"sim"}}}`)
	h.manager()
	h.pool("workers", 0, `{}`)
	h.hasDomains("west false", "east true")
	h.patch("MachineDeployment", "workers", `{"spec":{"replicas":2,"template":{"spec":{"failureDomain":"east"}}}}`)
	h.eventually(func(g gomega.Gomega) {
		for _, machine := range h.settled(g, 2) {
			node := h.node(g, text(machine, "status", "nodeRef", "name"))
			g.Expect(node.Labels).To(gomega.HaveKeyWithValue(corev1.LabelTopologyZone, "east"))
			ours := h.get(g, "MillwrightMachine", text(machine, "spec", "infrastructureRef", "name"))
			g.Expect(text(*ours, "status", "failureDomain")).To(gomega.Equal("east"))
			if contract == "v1beta2" {
				g.Expect(text(machine, "status", "failureDomain")).To(gomega.Equal("east"))
			}
		}
	})
	vms, err := h.cloud.VMs()
	if err != nil {
		t.Fatal(err)
	}
	for _, vm := range vms {
		if vm.Zone != "east" {
			t.Errorf("VM %s is in zone %q", vm.ProviderID, vm.Zone)
		}
	}
	h.staysQuiet(10 * time.Second)

	// If the zone does not exist, the driver reports that, and the machine does not fail permanently.
	lost := h.own("lost")
	h.machine(lost, `{"driver":"sim","providerSpec":{},"failureDomain":"south"}`, data)
	h.eventually(func(g gomega.Gomega) {
		ours := h.isReady(g, lost, "False", "CreationFailed")
		g.Expect(condition(ours, "Ready")).To(gomega.HaveKeyWithValue("message", gomega.ContainSubstring(`"south"`)))
		g.Expect(text(*ours, "status", "failureReason")).To(gomega.BeEmpty())
	})
	h.remove("Cluster", h.cluster)
	h.eventually(func(g gomega.Gomega) {
		g.Expect(h.vms(g)).To(gomega.BeEmpty())
		g.Expect(names(h.list(g, "Cluster"))).To(gomega.BeEmpty())
	})
}

// C4: a changed request is sent immediately. As long as the driver cannot respond, the previous zones are kept,
// and machines are created.
func TestFailureDomains_AreRefreshedOnChange(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newHarness(t)
	h.zones("east")
	class := &v1alpha1.MachineClass{ObjectMeta: metav1.ObjectMeta{Namespace: h.Namespace, Name: "zones"}, Provider: "sim"}
	class.ProviderSpec.Raw = []byte(`{"pool":"one"}`)
	if err := h.Client.Create(t.Context(), class); err != nil {
		t.Fatal(err)
	}
	h.patch("MillwrightCluster", h.cluster, `{"spec":{"failureDomainsFrom":{"driver":"sim","machineClassRef":{"name":"zones"}}}}`)
	h.manager()
	h.hasDomains("east true")

	h.zones("east", "north")
	h.changeClass(class, `{"pool":"two"}`)
	h.hasDomains("east true", "north true")

	h.changeClass(class, `{"join":"sideways"}`)
	h.knowsDomains("False", "DriverCallFailed", `"sideways"`)
	h.hasDomains("east true", "north true")
	h.pool("workers", 1, `{}`)
	h.eventually(func(g gomega.Gomega) { h.settled(g, 1) })

	h.patch("MillwrightCluster", h.cluster, `{"spec":{"failureDomainsFrom":null}}`)
	h.hasDomains()
}

// zones sets the zones of the simulated provider from now on.
func (h *harness) zones(names ...string) {
	h.t.Helper()
	if err := h.cloud.SetZones(names...); err != nil {
		h.t.Fatal(err)
	}
}

func (h *harness) changeClass(class *v1alpha1.MachineClass, providerSpec string) {
	h.t.Helper()
	class.ProviderSpec.Raw = []byte(providerSpec)
	if err := h.Client.Update(h.t.Context(), class); err != nil {
		h.t.Fatal(err)
	}
}

// hasDomains waits until the Cluster has these failure domains. The value reports whether a domain permits control
// plane machines. For an older core, they are a map by their names.
func (h *harness) hasDomains(want ...string) {
	h.t.Helper()
	h.eventually(func(g gomega.Gomega) {
		domains, _, err := unstructured.NestedFieldNoCopy(h.get(g, "Cluster", h.cluster).Object, "status", "failureDomains")
		g.Expect(err).NotTo(gomega.HaveOccurred())
		got := []string{}
		list, _ := domains.([]any)
		for _, domain := range list {
			domain, _ := domain.(map[string]any)
			got = append(got, fmt.Sprintf("%v %v", domain["name"], domain["controlPlane"] == true))
		}
		named, _ := domains.(map[string]any)
		for name, domain := range named {
			domain, _ := domain.(map[string]any)
			got = append(got, fmt.Sprintf("%v %v", name, domain["controlPlane"] == true))
		}
		g.Expect(got).To(gomega.ConsistOf(want))
	})
}

// knowsDomains waits until the condition has the status. Machines can be created in the meantime.
func (h *harness) knowsDomains(status, reason, texts string) {
	h.t.Helper()
	h.eventually(func(g gomega.Gomega) {
		ours := h.get(g, "MillwrightCluster", h.cluster)
		g.Expect(condition(ours, "FailureDomainsKnown")).To(gomega.And(
			gomega.HaveKeyWithValue("status", status), gomega.HaveKeyWithValue("reason", reason),
			gomega.HaveKeyWithValue("message", gomega.ContainSubstring(texts))))
		g.Expect(condition(ours, "Ready")).To(gomega.HaveKeyWithValue("status", "True"))
	})
}
