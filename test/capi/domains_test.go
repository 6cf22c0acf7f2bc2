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
)

// C4, M6: the driver tells which zones there are, to the core too, and puts machines there
// that say nothing about it themselves.
func TestFailureDomainsComeFromTheDriver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.zones("east", "west")
	w.patch("MillwrightCluster", w.cluster, `{"spec":{"failureDomains":[{"name":"west","controlPlane":false}],"failureDomainsFrom":{"driver":"sim"}}}`)
	w.manager()
	w.pool("workers", 0, `{}`)
	w.tellsDomains("west false", "east true")
	w.patch("MachineDeployment", "workers", `{"spec":{"replicas":2,"template":{"spec":{"failureDomain":"east"}}}}`)
	w.eventually(func(g gomega.Gomega) {
		for _, machine := range w.settled(g, 2) {
			node := w.node(g, text(machine, "status", "nodeRef", "name"))
			g.Expect(node.Labels).To(gomega.HaveKeyWithValue(corev1.LabelTopologyZone, "east"))
			ours := w.get(g, "MillwrightMachine", text(machine, "spec", "infrastructureRef", "name"))
			g.Expect(text(*ours, "status", "failureDomain")).To(gomega.Equal("east"))
			if contract == "v1beta2" {
				g.Expect(text(machine, "status", "failureDomain")).To(gomega.Equal("east"))
			}
		}
	})
	vms, err := w.cloud.VMs()
	if err != nil {
		t.Fatal(err)
	}
	for _, vm := range vms {
		if vm.Zone != "east" {
			t.Errorf("VM %s is in zone %q", vm.ProviderID, vm.Zone)
		}
	}
	w.staysQuiet(10 * time.Second)

	// Where there is no such zone, the driver says so, and nobody is beyond help.
	lost := w.own("lost")
	w.machine(lost, `{"driver":"sim","providerSpec":{},"failureDomain":"south"}`, data)
	w.eventually(func(g gomega.Gomega) {
		ours := w.isReady(g, lost, "False", "CreationFailed")
		g.Expect(condition(ours, "Ready")).To(gomega.HaveKeyWithValue("message", gomega.ContainSubstring(`"south"`)))
		g.Expect(text(*ours, "status", "failureReason")).To(gomega.BeEmpty())
	})
	w.remove("Cluster", w.cluster)
	w.eventually(func(g gomega.Gomega) {
		g.Expect(w.vms(g)).To(gomega.BeEmpty())
		g.Expect(names(w.list(g, "Cluster"))).To(gomega.BeEmpty())
	})
}

// C4: another question is asked at once. As long as the driver cannot answer, what it told
// before stays, and machines are made.
func TestFailureDomainsAreAskedForAnew(t *testing.T) {
	t.Parallel()
	if contract != "v1beta2" {
		t.Skip("an older core reads failure domains in another form, so the driver is not asked")
	}
	w := newWorld(t)
	w.zones("east")
	class := &v1alpha1.MachineClass{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: "zones"}, Provider: "sim"}
	class.ProviderSpec.Raw = []byte(`{"pool":"one"}`)
	if err := w.Client.Create(t.Context(), class); err != nil {
		t.Fatal(err)
	}
	w.patch("MillwrightCluster", w.cluster, `{"spec":{"failureDomainsFrom":{"driver":"sim","machineClassRef":{"name":"zones"}}}}`)
	w.manager()
	w.tellsDomains("east true")

	w.zones("east", "north")
	w.changeClass(class, `{"pool":"two"}`)
	w.tellsDomains("east true", "north true")

	w.changeClass(class, `{"join":"sideways"}`)
	w.knowsDomains("False", "DriverCallFailed", `"sideways"`)
	w.tellsDomains("east true", "north true")
	w.pool("workers", 1, `{}`)
	w.eventually(func(g gomega.Gomega) { w.settled(g, 1) })

	w.patch("MillwrightCluster", w.cluster, `{"spec":{"failureDomainsFrom":null}}`)
	w.tellsDomains()
}

// zones says which zones the simulated provider has from now on.
func (w *world) zones(names ...string) {
	w.t.Helper()
	if err := w.cloud.SetZones(names...); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) changeClass(class *v1alpha1.MachineClass, providerSpec string) {
	w.t.Helper()
	class.ProviderSpec.Raw = []byte(providerSpec)
	if err := w.Client.Update(w.t.Context(), class); err != nil {
		w.t.Fatal(err)
	}
}

// tellsDomains waits until the Cluster has these failure domains, each with whether control
// plane machines may be there. For an older core they are left out.
func (w *world) tellsDomains(want ...string) {
	w.t.Helper()
	if contract != "v1beta2" {
		w.knowsDomains("False", "NotSupported", "v1.11")
		return
	}
	w.eventually(func(g gomega.Gomega) {
		domains, _, err := unstructured.NestedSlice(w.get(g, "Cluster", w.cluster).Object, "status", "failureDomains")
		g.Expect(err).NotTo(gomega.HaveOccurred())
		got := []string{}
		for _, domain := range domains {
			domain, _ := domain.(map[string]any)
			got = append(got, fmt.Sprintf("%v %v", domain["name"], domain["controlPlane"]))
		}
		g.Expect(got).To(gomega.ConsistOf(want))
	})
}

// knowsDomains waits until the condition says so. All the while machines may be made.
func (w *world) knowsDomains(status, reason, words string) {
	w.t.Helper()
	w.eventually(func(g gomega.Gomega) {
		ours := w.get(g, "MillwrightCluster", w.cluster)
		g.Expect(condition(ours, "FailureDomainsKnown")).To(gomega.And(
			gomega.HaveKeyWithValue("status", status), gomega.HaveKeyWithValue("reason", reason),
			gomega.HaveKeyWithValue("message", gomega.ContainSubstring(words))))
		g.Expect(condition(ours, "Ready")).To(gomega.HaveKeyWithValue("status", "True"))
	})
}
