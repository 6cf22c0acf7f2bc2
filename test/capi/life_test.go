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
	"github.com/millwright-dev/millwright/test/env"
)

// The phases of one Machine, none of them twice, and never Failed.
func TestAMachineGoesThroughItsPhasesInOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	changes := w.changes("Machine")
	w.manager()
	w.pool("workers", 0, `{}`)
	one := w.own("one")
	w.machine(one, `{"driver":"sim","providerSpec":{"joinDelay":"1s"}}`, `{"dataSecretName":"workers"}`)
	var phases []string
	for !slices.Contains(phases, "Running") {
		machine := w.next(changes).Object.(*unstructured.Unstructured)
		if phase := text(*machine, "status", "phase"); phase != "" && (len(phases) == 0 || phases[len(phases)-1] != phase) {
			phases = append(phases, phase)
		}
	}
	// Which of them show depends on when the core looks.
	order := []string{"Pending", "Provisioning", "Provisioned", "Running"}
	gomega.NewWithT(t).Expect(phases).To(gomega.Equal(slices.DeleteFunc(order, func(phase string) bool { return !slices.Contains(phases, phase) })))

	machine := w.settled(gomega.NewWithT(t), 1)[0]
	for _, owner := range w.get(gomega.NewWithT(t), "MillwrightMachine", one).GetOwnerReferences() {
		if owner.Kind != "Machine" || owner.UID != machine.GetUID() || owner.Controller == nil || !*owner.Controller {
			t.Errorf("it is owned by %+v", owner)
		}
	}
	w.remove("Machine", one)
	w.eventually(func(g gomega.Gomega) { w.settled(g, 0) })
}

func TestMachinesOfADeploymentBecomeNodesAndGo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.manager()
	w.pool("workers", 0, `{}`)
	for _, replicas := range []int{3, 1, 0} {
		w.scale("workers", replicas)
		w.eventually(func(g gomega.Gomega) { w.settled(g, replicas) })
	}
}

// What the core reads of our objects, and what it makes of it (S7, S15, S46, M5, M7, M8, O1).
func TestTheCoreCopiesWhatWeTell(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.manager()
	w.pool("workers", 1, `{}`)
	w.eventually(func(g gomega.Gomega) {
		machine := w.settled(g, 1)[0]
		ours := w.get(g, "MillwrightMachine", text(machine, "spec", "infrastructureRef", "name"))
		g.Expect(text(machine, "spec", "providerID")).To(gomega.Equal(text(*ours, "spec", "providerID")))
		g.Expect(addresses(&machine)).To(gomega.Equal(addresses(ours)))
		g.Expect(addresses(ours)).NotTo(gomega.BeEmpty())
		ready, _, _ := unstructured.NestedBool(ours.Object, "status", "ready")
		provisioned, _, _ := unstructured.NestedBool(ours.Object, "status", "initialization", "provisioned")
		g.Expect(ready && provisioned).To(gomega.BeTrue())
		g.Expect(condition(ours, "Ready")).To(gomega.HaveKeyWithValue("status", "True"))
		g.Expect(condition(&machine, "InfrastructureReady")).To(gomega.HaveKeyWithValue("status", "True"))
		g.Expect(ours.GetLabels()).To(gomega.HaveKeyWithValue("cluster.x-k8s.io/cluster-name", w.cluster))
		cluster := w.get(g, "Cluster", w.cluster)
		g.Expect(condition(cluster, "InfrastructureReady")).To(gomega.HaveKeyWithValue("status", "True"))
		host, _, _ := unstructured.NestedString(cluster.Object, "spec", "controlPlaneEndpoint", "host")
		g.Expect(host).To(gomega.Equal("127.0.0.1"))
	})
}

func addresses(object *unstructured.Unstructured) []any {
	list, _, _ := unstructured.NestedSlice(object.Object, "status", "addresses")
	return list
}

func TestANewTemplateReplacesAllMachines(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.manager()
	w.pool("workers", 2, `{}`)
	var old []string
	w.eventually(func(g gomega.Gomega) {
		w.settled(g, 2)
		old = w.vms(g)
	})
	w.apply("pool.yaml", map[string]string{"POOL": "newer", "PROVIDERSPEC": `{"nodeLabels": {"size": "large"}}`})
	w.patch("MachineDeployment", "workers", `{"spec":{"template":{"spec":{"infrastructureRef":{"name":"newer"}}}}}`)
	w.eventually(func(g gomega.Gomega) {
		for _, machine := range w.settled(g, 2) {
			g.Expect(old).NotTo(gomega.ContainElement(text(machine, "spec", "infrastructureRef", "name")))
			g.Expect(w.node(g, text(machine, "status", "nodeRef", "name")).Labels).To(gomega.HaveKeyWithValue("size", "large"))
		}
	})
}

// A4: how the cluster autoscaler asks for one certain machine to go.
func TestTheMachineMarkedForDeletionGoes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.manager()
	w.pool("workers", 3, `{}`)
	var machines []unstructured.Unstructured
	w.eventually(func(g gomega.Gomega) { machines = w.settled(g, 3) })
	victim := machines[1].GetName()
	w.patch("Machine", victim, `{"metadata":{"annotations":{"cluster.x-k8s.io/delete-machine":"yes"}}}`)
	w.scale("workers", 2)
	w.eventually(func(g gomega.Gomega) {
		for _, machine := range w.settled(g, 2) {
			g.Expect(machine.GetName()).NotTo(gomega.Equal(victim))
		}
	})
}

func TestMachinesGoWhereTheirFailureDomainSays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.patch("MillwrightCluster", w.cluster, `{"spec":{"failureDomains":[{"name":"east"},{"name":"west","controlPlane":true}]}}`)
	w.manager()
	w.pool("workers", 0, `{}`)
	w.patch("MillwrightMachineTemplate", "workers", `{"spec":{"template":{"spec":{"failureDomains":[
		{"name":"east","providerSpec":{"nodeLabels":{"place":"e"}}},{"name":"west","providerSpec":{"nodeLabels":{"place":"w"}}}]}}}}`)
	w.patch("MachineDeployment", "workers", `{"spec":{"replicas":1,"template":{"spec":{"failureDomain":"west"}}}}`)
	w.eventually(func(g gomega.Gomega) {
		machine := w.settled(g, 1)[0]
		g.Expect(w.node(g, text(machine, "status", "nodeRef", "name")).Labels).To(gomega.HaveKeyWithValue("place", "w"))
		ours := w.get(g, "MillwrightMachine", text(machine, "spec", "infrastructureRef", "name"))
		g.Expect(text(*ours, "status", "failureDomain")).To(gomega.Equal("west"))
		if contract == "v1beta2" {
			g.Expect(text(machine, "status", "failureDomain")).To(gomega.Equal("west"))
			domains, _, _ := unstructured.NestedSlice(w.get(g, "Cluster", w.cluster).Object, "status", "failureDomains")
			g.Expect(domains).To(gomega.HaveLen(2))
		}
	})
}

func TestNothingIsMadeBeforeTheBootstrapDataIsThere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.manager()
	w.pool("workers", 0, `{}`)
	bootstrap := &corev1.Secret{}
	bootstrap.Namespace, bootstrap.Name = w.Namespace, "workers"
	if err := w.Client.Delete(t.Context(), bootstrap); err != nil {
		t.Fatal(err)
	}
	w.scale("workers", 1)
	w.eventually(func(g gomega.Gomega) {
		ours := w.list(g, "MillwrightMachine")
		g.Expect(ours).To(gomega.HaveLen(1))
		g.Expect(condition(&ours[0], "Ready")).To(gomega.And(
			gomega.HaveKeyWithValue("status", "False"), gomega.HaveKeyWithValue("reason", "WaitingForBootstrapData")))
		g.Expect(w.vms(g)).To(gomega.BeEmpty())
	})
	w.apply("pool.yaml", map[string]string{"POOL": "workers", "PROVIDERSPEC": "{}"})
	w.eventually(func(g gomega.Gomega) { w.settled(g, 1) })
}

// G1, G2: whichever of the two is paused.
func TestAPausedMachineIsNotRemoved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.manager()
	w.pool("workers", 1, `{}`)
	w.eventually(func(g gomega.Gomega) { w.settled(g, 1) })
	ours := w.list(gomega.NewWithT(t), "MillwrightMachine")[0].GetName()
	paused := func(status string) {
		w.eventually(func(g gomega.Gomega) {
			g.Expect(condition(w.get(g, "MillwrightMachine", ours), "Paused")).To(gomega.HaveKeyWithValue("status", status))
		})
	}
	paused("False")
	w.patch("Cluster", w.cluster, `{"spec":{"paused":true}}`)
	paused("True")
	w.remove("MillwrightMachine", ours)
	w.keepsItsVM(ours)

	w.patch("MillwrightMachine", ours, `{"metadata":{"annotations":{"cluster.x-k8s.io/paused":""}}}`)
	// Who says again that it is paused has seen the annotation, and not only the Cluster.
	w.forgetConditions(ours)
	paused("True")
	w.patch("Cluster", w.cluster, `{"spec":{"paused":false}}`)
	w.keepsItsVM(ours)

	// An older core does not scale a set one of whose machines has lost its infrastructure.
	w.scale("workers", 0)
	w.eventually(func(g gomega.Gomega) {
		g.Expect(w.get(g, "Machine", ours).GetDeletionTimestamp()).NotTo(gomega.BeNil())
	})
	w.patch("MillwrightMachine", ours, `{"metadata":{"annotations":{"cluster.x-k8s.io/paused":null}}}`)
	w.eventually(func(g gomega.Gomega) { w.settled(g, 0) })
}

// forgetConditions takes away what a MillwrightMachine says.
func (w *world) forgetConditions(ours string) {
	w.t.Helper()
	none := client.RawPatch("application/merge-patch+json", []byte(`{"status":{"conditions":null}}`))
	if err := w.Client.Status().Patch(w.t.Context(), w.object("MillwrightMachine", ours), none); err != nil {
		w.t.Fatal(err)
	}
}

// keepsItsVM checks that a pass does nothing: whatever is done to the object is followed
// by one.
func (w *world) keepsItsVM(ours string) {
	w.t.Helper()
	w.patch("MillwrightMachine", ours, `{"metadata":{"labels":{"touched":"yes"}}}`)
	gomega.NewWithT(w.t).Consistently(func(g gomega.Gomega) {
		g.Expect(w.vms(g)).To(gomega.Equal([]string{ours}))
		g.Expect(w.get(g, "MillwrightMachine", ours).GetDeletionTimestamp()).NotTo(gomega.BeNil())
	}).WithTimeout(2 * time.Second).WithPolling(100 * time.Millisecond).Should(gomega.Succeed())
	w.patch("MillwrightMachine", ours, `{"metadata":{"labels":{"touched":null}}}`)
}

func TestAClusterTakesItsMachinesAlong(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.manager()
	w.pool("workers", 2, `{}`)
	w.pool("others", 1, `{}`)
	w.eventually(func(g gomega.Gomega) { w.settled(g, 3) })
	w.remove("Cluster", w.cluster)
	w.eventually(func(g gomega.Gomega) {
		g.Expect(w.vms(g)).To(gomega.BeEmpty())
		for _, kind := range []string{"Cluster", "MillwrightCluster", "Machine", "MillwrightMachine", "MachineDeployment"} {
			g.Expect(names(w.list(g, kind))).To(gomega.BeEmpty(), kind)
		}
	})
}

// R3: somebody removed finalizers by hand, and with them an owner, before our turn.
func TestDeletionSurvivesAnOwnerThatIsGone(t *testing.T) {
	t.Parallel()
	for _, gone := range []string{"Machine", "Cluster", "MillwrightCluster"} {
		t.Run(gone, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			first := w.manager()
			w.pool("workers", 1, `{}`)
			var machine unstructured.Unstructured
			w.eventually(func(g gomega.Gomega) { machine = w.settled(g, 1)[0] })
			first.Stop()

			name := map[string]string{"Machine": machine.GetName()}[gone]
			if name == "" {
				name = w.cluster
			}
			w.remove(gone, name)
			w.eventually(func(g gomega.Gomega) {
				object := w.object(gone, name)
				err := w.Client.Patch(t.Context(), object, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))
				g.Expect(client.IgnoreNotFound(err)).To(gomega.Succeed())
				w.isGone(g, gone, name)
			})
			w.remove("MillwrightMachine", text(machine, "spec", "infrastructureRef", "name"))
			w.manager()
			w.eventually(func(g gomega.Gomega) {
				g.Expect(slices.Contains(w.vms(g), text(machine, "spec", "infrastructureRef", "name"))).To(gomega.BeFalse(), "its VM is left")
				w.isGone(g, "MillwrightMachine", text(machine, "spec", "infrastructureRef", "name"))
			})
		})
	}
}

func TestTheExampleWorks(t *testing.T) {
	t.Parallel()
	if contract != "v1beta2" {
		t.Skip("the example is written for the newest version of Cluster API's kinds")
	}
	w := emptyWorld(t, env.New(t, env.WithControllerManager()).Cluster)
	w.cluster = "demo"
	w.apply("provider.yaml", nil)
	w.apply(contract+"/cluster.yaml", nil)
	w.manager()
	if err := controlplane.Apply(t.Context(), w.Admin, os.DirFS("../../examples/cluster-api"), "workers.yaml", w.Namespace); err != nil {
		t.Fatal(err)
	}
	w.eventually(func(g gomega.Gomega) {
		for _, machine := range w.settled(g, 2) {
			g.Expect(condition(&machine, "UpToDate")).To(gomega.HaveKeyWithValue("status", "True"), machine.GetName())
		}
		cpu := text(*w.get(g, "MillwrightMachineTemplate", "demo-workers"), "status", "capacity", "cpu")
		g.Expect(cpu).To(gomega.Equal("2"), "what autoscalers read (T4)")
	})
}
