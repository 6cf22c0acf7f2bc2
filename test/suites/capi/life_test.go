package capi

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/internal/local/controlplane"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestMachine_PhasesAreInOrder checks that a Machine has each phase at most once, in order, and is
// never Failed.
func TestMachine_PhasesAreInOrder(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	changes := h.changes("Machine")
	h.manager()
	h.pool("workers", 0, `{}`)
	one := h.own("one")
	h.machine(one, `{"driver":"sim","providerSpec":{"joinDelay":"1s"}}`, `{"dataSecretName":"workers"}`)
	var phases []string
	for !slices.Contains(phases, "Running") {
		machine := h.next(changes).Object.(*unstructured.Unstructured)
		if phase := text(*machine, "status", "phase"); phase != "" && (len(phases) == 0 || phases[len(phases)-1] != phase) {
			phases = append(phases, phase)
		}
	}
	// Which of them can be observed depends on when the core reconciles.
	order := []string{"Pending", "Provisioning", "Provisioned", "Running"}
	gomega.NewWithT(t).Expect(phases).To(gomega.Equal(slices.DeleteFunc(order, func(phase string) bool { return !slices.Contains(phases, phase) })))

	machine := h.settled(gomega.NewWithT(t), 1)[0]
	for _, owner := range h.get(gomega.NewWithT(t), "MillwrightMachine", one).GetOwnerReferences() {
		if owner.Kind != "Machine" || owner.UID != machine.GetUID() || owner.Controller == nil || !*owner.Controller {
			t.Errorf("it is owned by %+v", owner)
		}
	}
	h.remove("Machine", one)
	h.eventually(func(g gomega.Gomega) { h.settled(g, 0) })
}

func TestMachineDeployment_Lifecycle(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newHarness(t)
	h.manager()
	h.pool("workers", 0, `{}`)
	for _, replicas := range []int{3, 1, 0} {
		h.scale("workers", replicas)
		h.eventually(func(g gomega.Gomega) { h.settled(g, replicas) })
	}
}

// TestMachine_CoreCopiesInfrastructureStatus checks what the core reads from our objects, and what it derives from that (S7,
// S15, S46, M5, M7, M8, O1).
func TestMachine_CoreCopiesInfrastructureStatus(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newHarness(t)
	h.manager()
	h.pool("workers", 1, `{}`)
	h.eventually(func(g gomega.Gomega) {
		machine := h.settled(g, 1)[0]
		ours := h.get(g, "MillwrightMachine", text(machine, "spec", "infrastructureRef", "name"))
		g.Expect(text(machine, "spec", "providerID")).To(gomega.Equal(text(*ours, "spec", "providerID")))
		g.Expect(addresses(&machine)).To(gomega.Equal(addresses(ours)))
		g.Expect(addresses(ours)).NotTo(gomega.BeEmpty())
		ready, _, _ := unstructured.NestedBool(ours.Object, "status", "ready")
		provisioned, _, _ := unstructured.NestedBool(ours.Object, "status", "initialization", "provisioned")
		g.Expect(ready && provisioned).To(gomega.BeTrue())
		g.Expect(condition(ours, "Ready")).To(gomega.HaveKeyWithValue("status", "True"))
		g.Expect(condition(&machine, "InfrastructureReady")).To(gomega.HaveKeyWithValue("status", "True"))
		g.Expect(ours.GetLabels()).To(gomega.HaveKeyWithValue("cluster.x-k8s.io/cluster-name", h.cluster))
		cluster := h.get(g, "Cluster", h.cluster)
		g.Expect(condition(cluster, "InfrastructureReady")).To(gomega.HaveKeyWithValue("status", "True"))
		host, _, _ := unstructured.NestedString(cluster.Object, "spec", "controlPlaneEndpoint", "host")
		g.Expect(host).To(gomega.Equal("127.0.0.1"))
	})
}

func addresses(object *unstructured.Unstructured) []any {
	list, _, _ := unstructured.NestedSlice(object.Object, "status", "addresses")
	return list
}

func TestMachineDeployment_NewTemplateReplacesMachines(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newHarness(t)
	h.manager()
	h.pool("workers", 2, `{}`)
	var old []string
	h.eventually(func(g gomega.Gomega) {
		h.settled(g, 2)
		old = h.vms(g)
	})
	h.apply("pool.yaml", map[string]string{"POOL": "newer", "PROVIDERSPEC": `{"nodeLabels": {"size": "large"}}`})
	h.patch("MachineDeployment", "workers", `{"spec":{"template":{"spec":{"infrastructureRef":{"name":"newer"}}}}}`)
	h.eventually(func(g gomega.Gomega) {
		for _, machine := range h.settled(g, 2) {
			g.Expect(old).NotTo(gomega.ContainElement(text(machine, "spec", "infrastructureRef", "name")))
			g.Expect(h.node(g, text(machine, "status", "nodeRef", "name")).Labels).To(gomega.HaveKeyWithValue("size", "large"))
		}
	})
}

// A4: how the cluster autoscaler selects a specific machine for deletion.
func TestMachineDeployment_MarkedMachineIsDeleted(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newHarness(t)
	h.manager()
	h.pool("workers", 3, `{}`)
	var machines []unstructured.Unstructured
	h.eventually(func(g gomega.Gomega) { machines = h.settled(g, 3) })
	named := machines[1].GetName()
	h.patch("Machine", named, `{"metadata":{"annotations":{"cluster.x-k8s.io/delete-machine":"yes"}}}`)
	h.scale("workers", 2)
	h.eventually(func(g gomega.Gomega) {
		for _, machine := range h.settled(g, 2) {
			g.Expect(machine.GetName()).NotTo(gomega.Equal(named))
		}
	})
}

func TestMachine_FailureDomainIsRespected(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newHarness(t)
	h.patch("MillwrightCluster", h.cluster, `{"spec":{"failureDomains":[{"name":"east"},{"name":"west","controlPlane":true}]}}`)
	h.manager()
	h.pool("workers", 0, `{}`)
	h.patch("MillwrightMachineTemplate", "workers", `{"spec":{"template":{"spec":{"failureDomains":[
		{"name":"east","providerSpec":{"nodeLabels":{"place":"e"}}},{"name":"west","providerSpec":{"nodeLabels":{"place":"w"}}}]}}}}`)
	h.patch("MachineDeployment", "workers", `{"spec":{"replicas":1,"template":{"spec":{"failureDomain":"west"}}}}`)
	h.eventually(func(g gomega.Gomega) {
		machine := h.settled(g, 1)[0]
		g.Expect(h.node(g, text(machine, "status", "nodeRef", "name")).Labels).To(gomega.HaveKeyWithValue("place", "w"))
		ours := h.get(g, "MillwrightMachine", text(machine, "spec", "infrastructureRef", "name"))
		g.Expect(text(*ours, "status", "failureDomain")).To(gomega.Equal("west"))
		if contract == "v1beta2" {
			g.Expect(text(machine, "status", "failureDomain")).To(gomega.Equal("west"))
			domains, _, _ := unstructured.NestedSlice(h.get(g, "Cluster", h.cluster).Object, "status", "failureDomains")
			g.Expect(domains).To(gomega.HaveLen(2))
		}
	})
}

func TestMachine_WaitsForBootstrapData(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newHarness(t)
	h.manager()
	h.pool("workers", 0, `{}`)
	bootstrap := &corev1.Secret{}
	bootstrap.Namespace, bootstrap.Name = h.Namespace, "workers"
	if err := h.Client.Delete(t.Context(), bootstrap); err != nil {
		t.Fatal(err)
	}
	h.scale("workers", 1)
	h.eventually(func(g gomega.Gomega) {
		ours := h.list(g, "MillwrightMachine")
		g.Expect(ours).To(gomega.HaveLen(1))
		g.Expect(condition(&ours[0], "Ready")).To(gomega.And(
			gomega.HaveKeyWithValue("status", "False"), gomega.HaveKeyWithValue("reason", "WaitingForBootstrapData")))
		g.Expect(h.vms(g)).To(gomega.BeEmpty())
	})
	h.apply("pool.yaml", map[string]string{"POOL": "workers", "PROVIDERSPEC": "{}"})
	h.eventually(func(g gomega.Gomega) { h.settled(g, 1) })
}

// G1, G2: either the Machine or the Cluster is paused.
func TestMachine_PausedIsNotDeleted(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newHarness(t)
	h.manager()
	h.pool("workers", 1, `{}`)
	h.eventually(func(g gomega.Gomega) { h.settled(g, 1) })
	ours := h.list(gomega.NewWithT(t), "MillwrightMachine")[0].GetName()
	paused := func(status string) {
		h.eventually(func(g gomega.Gomega) {
			g.Expect(condition(h.get(g, "MillwrightMachine", ours), "Paused")).To(gomega.HaveKeyWithValue("status", status))
		})
	}
	paused("False")
	h.patch("Cluster", h.cluster, `{"spec":{"paused":true}}`)
	paused("True")
	h.remove("MillwrightMachine", ours)
	h.keepsItsVM(ours)

	h.patch("MillwrightMachine", ours, `{"metadata":{"annotations":{"cluster.x-k8s.io/paused":""}}}`)
	// If the condition is set again, the manager has observed the annotation, and not only the Cluster.
	h.forgetConditions(ours)
	paused("True")
	h.patch("Cluster", h.cluster, `{"spec":{"paused":false}}`)
	h.keepsItsVM(ours)

	// An older core does not scale a MachineSet if one of its machines has lost its infrastructure.
	h.scale("workers", 0)
	h.eventually(func(g gomega.Gomega) {
		g.Expect(h.get(g, "Machine", ours).GetDeletionTimestamp()).NotTo(gomega.BeNil())
	})
	h.patch("MillwrightMachine", ours, `{"metadata":{"annotations":{"cluster.x-k8s.io/paused":null}}}`)
	h.eventually(func(g gomega.Gomega) { h.settled(g, 0) })
}

// forgetConditions removes the conditions of a MillwrightMachine.
func (h *harness) forgetConditions(ours string) {
	h.t.Helper()
	none := client.RawPatch("application/merge-patch+json", []byte(`{"status":{"conditions":null}}`))
	if err := h.Client.Status().Patch(h.t.Context(), h.object("MillwrightMachine", ours), none); err != nil {
		h.t.Fatal(err)
	}
}

// keepsItsVM checks that a pass changes nothing. Each change of the object is followed by a pass.
func (h *harness) keepsItsVM(ours string) {
	h.t.Helper()
	h.patch("MillwrightMachine", ours, `{"metadata":{"labels":{"touched":"yes"}}}`)
	gomega.NewWithT(h.t).Consistently(func(g gomega.Gomega) {
		g.Expect(h.vms(g)).To(gomega.Equal([]string{ours}))
		g.Expect(h.get(g, "MillwrightMachine", ours).GetDeletionTimestamp()).NotTo(gomega.BeNil())
	}).WithTimeout(2 * time.Second).WithPolling(100 * time.Millisecond).Should(gomega.Succeed())
	h.patch("MillwrightMachine", ours, `{"metadata":{"labels":{"touched":null}}}`)
}

func TestCluster_DeletionDeletesMachines(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newHarness(t)
	h.manager()
	h.pool("workers", 2, `{}`)
	h.pool("others", 1, `{}`)
	h.eventually(func(g gomega.Gomega) { h.settled(g, 3) })
	h.remove("Cluster", h.cluster)
	h.eventually(func(g gomega.Gomega) {
		g.Expect(h.vms(g)).To(gomega.BeEmpty())
		for _, kind := range []string{"Cluster", "MillwrightCluster", "Machine", "MillwrightMachine", "MachineDeployment"} {
			g.Expect(names(h.list(g, kind))).To(gomega.BeEmpty(), kind)
		}
	})
}

// R3: a user removed finalizers manually, and with them an owner, before our turn.
func TestMillwrightMachine_DeletionWithoutOwner(t *testing.T) {
	tier.All(t)
	t.Parallel()
	for _, gone := range []string{"Machine", "Cluster", "MillwrightCluster"} {
		t.Run(gone, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t)
			first := h.manager()
			h.pool("workers", 1, `{}`)
			var machine unstructured.Unstructured
			h.eventually(func(g gomega.Gomega) { machine = h.settled(g, 1)[0] })
			first.Stop()

			name := map[string]string{"Machine": machine.GetName()}[gone]
			if name == "" {
				name = h.cluster
			}
			h.remove(gone, name)
			h.eventually(func(g gomega.Gomega) {
				object := h.object(gone, name)
				err := h.Client.Patch(t.Context(), object, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))
				g.Expect(client.IgnoreNotFound(err)).To(gomega.Succeed())
				h.isGone(g, gone, name)
			})
			h.remove("MillwrightMachine", text(machine, "spec", "infrastructureRef", "name"))
			h.manager()
			h.eventually(func(g gomega.Gomega) {
				g.Expect(slices.Contains(h.vms(g), text(machine, "spec", "infrastructureRef", "name"))).To(gomega.BeFalse(), "its VM is left")
				h.isGone(g, "MillwrightMachine", text(machine, "spec", "infrastructureRef", "name"))
			})
		})
	}
}

func TestExample_Works(t *testing.T) {
	tier.All(t)
	t.Parallel()
	if contract != "v1beta2" {
		t.Skip("the example is written for the newest version of Cluster API's kinds")
	}
	h := newEmptyHarness(t, env.New(t, env.WithControllerManager()).Cluster)
	h.cluster = "demo"
	h.apply("provider.yaml", nil)
	h.apply(contract+"/cluster.yaml", nil)
	h.manager()
	if err := controlplane.Apply(t.Context(), h.Admin, os.DirFS("../../../examples/cluster-api"), "workers.yaml", h.Namespace); err != nil {
		t.Fatal(err)
	}
	h.eventually(func(g gomega.Gomega) {
		for _, machine := range h.settled(g, 2) {
			g.Expect(condition(&machine, "UpToDate")).To(gomega.HaveKeyWithValue("status", "True"), machine.GetName())
		}
		cpu := text(*h.get(g, "MillwrightMachineTemplate", "demo-workers"), "status", "capacity", "cpu")
		g.Expect(cpu).To(gomega.Equal("2"), "what autoscalers read (T4)")
	})
}
