package capi

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestKubeadmControlPlane_UsesLoadBalancer checks that a KubeadmControlPlane gets its endpoint from the load balancer before
// its first machine, and keeps it when machines change.
func TestKubeadmControlPlane_UsesLoadBalancer(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newKubeadmHarness(t)
	h.manager()
	h.balancer()
	h.declare()
	var given string
	h.eventually(func(g gomega.Gomega) {
		given = endpoint(h.get(g, "MillwrightCluster", h.cluster))
		g.Expect(given).To(gomega.HavePrefix("[127.0.0.1]:"))
		g.Expect(endpoint(h.get(g, "Cluster", h.cluster))).To(gomega.Equal(given))
	})
	h.hasControlPlane(1)
	h.hasKubeadmData()
	h.eventually(func(g gomega.Gomega) { h.hasWorkers(g, 1) })
	h.replacesABrokenWorker()

	workload := h.workload()
	h.scaleControlPlane(3)
	h.hasControlPlane(3)
	h.scaleControlPlane(1)
	h.hasControlPlane(1)
	before := h.controlPlaneMachines(gomega.NewWithT(t))

	// As in an upgrade, all machines are replaced.
	h.patch("KubeadmControlPlane", h.cluster, fmt.Sprintf(
		`{"spec":{"machineTemplate":{"spec":{"infrastructureRef":{"name":%q}}}}}`, h.template("control-plane-2")))
	h.eventually(func(g gomega.Gomega) {
		h.playKubeadm(g)
		g.Expect(h.controlPlaneMachines(g)).NotTo(gomega.ContainElement(before[0]))
	})
	h.hasControlPlane(1)
	if version, err := workload.Discovery().ServerVersion(); err != nil {
		t.Errorf("the kubeconfig of the first day does not lead to the machines of today: %v", err)
	} else {
		t.Logf("the API server behind %s is %s", given, version)
	}
	g := gomega.NewWithT(t)
	g.Expect(endpoint(h.get(g, "MillwrightCluster", h.cluster))).To(gomega.Equal(given))

	h.remove("Cluster", h.cluster)
	h.eventually(func(g gomega.Gomega) {
		for _, kind := range []string{"Cluster", "MillwrightCluster", "KubeadmControlPlane", "KubeadmConfig", "MachineDeployment", "Machine", "MillwrightMachine"} {
			g.Expect(names(h.list(g, kind))).To(gomega.BeEmpty(), kind)
		}
		g.Expect(h.vms(g)).To(gomega.BeEmpty())
	})
}

// scaleControlPlane changes the number of machines.
func (h *kubeadmHarness) scaleControlPlane(replicas int) {
	h.t.Helper()
	h.patch("KubeadmControlPlane", h.cluster, fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas))
}

// controlPlaneMachines returns the names of the Machines of the control plane.
func (h *kubeadmHarness) controlPlaneMachines(g gomega.Gomega) []string {
	machines := slices.DeleteFunc(h.list(g, "Machine"), func(m unstructured.Unstructured) bool { return !isControlPlane(m) })
	return names(machines)
}

func isControlPlane(machine unstructured.Unstructured) bool {
	_, found := machine.GetLabels()["cluster.x-k8s.io/control-plane"]
	return found
}

// hasControlPlane waits until the control plane has that many machines, all of them nodes that Cluster API has
// found healthy through the endpoint.
func (h *kubeadmHarness) hasControlPlane(count int) {
	h.t.Helper()
	h.eventually(func(g gomega.Gomega) {
		h.playKubeadm(g)
		g.Expect(h.controlPlaneMachines(g)).To(gomega.HaveLen(count))
		for _, machine := range h.list(g, "Machine") {
			if !isControlPlane(machine) {
				continue
			}
			g.Expect(text(machine, "status", "phase")).To(gomega.Equal("Running"), machine.GetName())
			g.Expect(condition(&machine, "APIServerPodHealthy")).To(gomega.HaveKeyWithValue("status", "True"), machine.GetName())
		}
		plane := h.get(g, "KubeadmControlPlane", h.cluster)
		g.Expect(condition(plane, "Available")).To(gomega.HaveKeyWithValue("status", "True"))
		g.Expect(condition(plane, "MachinesUpToDate")).To(gomega.HaveKeyWithValue("status", "True"))
		ready, _, _ := unstructured.NestedInt64(plane.Object, "status", "readyReplicas")
		g.Expect(ready).To(gomega.BeEquivalentTo(count))
		g.Expect(condition(h.get(g, "MillwrightCluster", h.cluster), "LoadBalancerReady")).To(gomega.HaveKeyWithValue("status", "True"))
	})
}

// workers returns the Machines that do not belong to the control plane.
func (h *kubeadmHarness) workers(g gomega.Gomega) []unstructured.Unstructured {
	return slices.DeleteFunc(h.list(g, "Machine"), isControlPlane)
}

// hasWorkers checks that there are that many workers, and that they are nodes.
func (h *kubeadmHarness) hasWorkers(g gomega.Gomega, count int) {
	workers := h.workers(g)
	g.Expect(names(workers)).To(gomega.HaveLen(count))
	for _, machine := range workers {
		g.Expect(text(machine, "status", "phase")).To(gomega.Equal("Running"), machine.GetName())
	}
}

// replacesABrokenWorker waits until the MachineHealthCheck has replaced a worker whose node fails.
func (h *kubeadmHarness) replacesABrokenWorker() {
	h.t.Helper()
	broken := h.workers(gomega.NewWithT(h.t))[0].GetName()
	h.eventually(func(g gomega.Gomega) {
		h.breaks(g, broken)
		g.Expect(names(h.workers(g))).NotTo(gomega.ContainElement(broken))
		h.hasWorkers(g, 1)
	})
}

// breaks keeps a node NotReady as long as it exists.
func (h *kubeadmHarness) breaks(g gomega.Gomega, name string) {
	node := &corev1.Node{}
	if err := h.Client.Get(h.t.Context(), client.ObjectKey{Name: name}, node); apierrors.IsNotFound(err) {
		return
	}
	for i := range node.Status.Conditions {
		if ready := &node.Status.Conditions[i]; ready.Type == corev1.NodeReady && ready.Status != corev1.ConditionFalse {
			ready.Status, ready.LastTransitionTime = corev1.ConditionFalse, metav1.Now()
			g.Expect(h.Client.Status().Update(h.t.Context(), node)).To(gomega.Succeed())
		}
	}
}

// hasKubeadmData checks the bootstrap data of the first machine.
func (h *kubeadmHarness) hasKubeadmData() {
	h.t.Helper()
	g := gomega.NewWithT(h.t)
	data := h.bootstrapData(g)
	g.Expect(data).To(gomega.HavePrefix("## template: jinja\n#cloud-config\n"))
	host := strings.Trim(strings.ReplaceAll(endpoint(h.get(g, "Cluster", h.cluster)), "]", ""), "[")
	for _, part := range []string{"kubeadm init --config /run/kubeadm/kubeadm.yaml", "controlPlaneEndpoint: " + host, "path: /etc/kubernetes/pki/ca.key"} {
		g.Expect(data).To(gomega.ContainSubstring(part))
	}
}

// bootstrapData returns the bootstrap data of the first machine of the control plane.
func (h *kubeadmHarness) bootstrapData(g gomega.Gomega) string {
	machine := h.get(g, "Machine", h.controlPlaneMachines(g)[0])
	secret := &corev1.Secret{}
	key := client.ObjectKey{Namespace: h.Namespace, Name: text(*machine, "spec", "bootstrap", "dataSecretName")}
	g.Expect(h.Client.Get(h.t.Context(), key, secret)).To(gomega.Succeed())
	g.Expect(string(secret.Data["format"])).To(gomega.Equal("cloud-config"))
	return string(secret.Data["value"])
}

// workload returns a client with the kubeconfig that Cluster API provides to users.
func (h *kubeadmHarness) workload() kubernetes.Interface {
	h.t.Helper()
	secret := &corev1.Secret{}
	if err := h.Client.Get(h.t.Context(), client.ObjectKey{Namespace: h.Namespace, Name: h.cluster + "-kubeconfig"}, secret); err != nil {
		h.t.Fatal(err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(secret.Data["value"])
	if err != nil {
		h.t.Fatal(err)
	}
	made, err := kubernetes.NewForConfig(rest.AddUserAgent(config, "a-user"))
	if err != nil {
		h.t.Fatal(err)
	}
	return made
}

// TestKubeadmControlPlane_IsUpdatedInPlace checks that a KubeadmControlPlane keeps its machines and their VMs if its new
// template differs only in what the driver can change.
func TestKubeadmControlPlane_IsUpdatedInPlace(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newKubeadmHarness(t)
	h.registerExtension(h.managerWithWebhooks())
	h.balancer()
	h.declare()
	h.hasControlPlane(1)
	// With fewer than three machines, or with a surge, the first machine of a rollout is always a new one.
	h.patch("KubeadmControlPlane", h.cluster,
		`{"spec":{"replicas":3,"rollout":{"strategy":{"type":"RollingUpdate","rollingUpdate":{"maxSurge":0}}}}}`)
	h.hasControlPlane(3)
	before, machines := h.vmsOfControlPlane(gomega.NewWithT(t)), h.controlPlaneMachines(gomega.NewWithT(t))

	tagged := h.cluster + "-control-plane-tagged"
	h.harness.template(tagged, fmt.Sprintf(
		`{"pool":%q,"nodeLabels":{"node-role.kubernetes.io/control-plane":""},"tags":{"a":"1"}}`, h.cluster))
	h.patch("KubeadmControlPlane", h.cluster,
		fmt.Sprintf(`{"spec":{"machineTemplate":{"spec":{"infrastructureRef":{"name":%q}}}}}`, tagged))
	h.eventually(func(g gomega.Gomega) {
		h.playKubeadm(g)
		for _, id := range h.vmsOfControlPlane(g) {
			g.Expect(before).To(gomega.ContainElement(id), "a VM was replaced")
			g.Expect(h.vmsByID(g)[id].Tags).To(gomega.HaveKeyWithValue("a", "1"))
		}
		for _, name := range h.controlPlaneMachines(g) {
			infra := h.get(g, "MillwrightMachine", name)
			g.Expect(infra.GetAnnotations()).To(gomega.HaveKeyWithValue("cluster.x-k8s.io/cloned-from-name", tagged))
			for _, object := range []*unstructured.Unstructured{infra, h.get(g, "Machine", name), h.get(g, "KubeadmConfig", name)} {
				g.Expect(object.GetAnnotations()).NotTo(gomega.HaveKey(updating), "%s %s", object.GetKind(), name)
			}
		}
	})
	h.hasControlPlane(3)
	g := gomega.NewWithT(t)
	g.Expect(h.controlPlaneMachines(g)).To(gomega.ConsistOf(machines))
	g.Expect(h.vmsOfControlPlane(g)).To(gomega.ConsistOf(before))
}

// vmsOfControlPlane returns the provider IDs of the control plane's VMs.
func (h *kubeadmHarness) vmsOfControlPlane(g gomega.Gomega) []string {
	machines := h.controlPlaneMachines(g)
	var ids []string
	for id, vm := range h.vmsByID(g) {
		if vm.GoneAt.IsZero() && slices.Contains(machines, vm.Machine) {
			ids = append(ids, id)
		}
	}
	return ids
}

// TestKubeadmControlPlane_BootstrapDataReachesVM checks that the bootstrap data of the first machine of the released
// template reach its virtual machine unchanged.
func TestKubeadmControlPlane_BootstrapDataReachesVM(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newKubeadmHarness(t)
	h.managerOfVMs()
	h.balancer()
	h.released(contract, h.cluster, nil, "--flavor", "development", "--control-plane-machine-count", "3", "--worker-machine-count", "1")
	h.eventually(func(g gomega.Gomega) {
		g.Expect(h.controlPlaneMachines(g)).To(gomega.HaveLen(1), "the others wait for the first")
		vms := h.list(g, "VirtualMachine")
		g.Expect(vms).To(gomega.HaveLen(1))
		key := client.ObjectKey{Namespace: h.Namespace, Name: text(vms[0], "spec", "userData", "secretRef", "name")}
		userData := &corev1.Secret{}
		g.Expect(h.Client.Get(h.t.Context(), key, userData)).To(gomega.Succeed())
		g.Expect(string(userData.Data["userData"])).To(gomega.Equal(h.bootstrapData(g)))
		g.Expect(condition(h.get(g, "MillwrightCluster", h.cluster), "LoadBalancerReady")).To(gomega.And(
			gomega.HaveKeyWithValue("status", "False"), gomega.HaveKeyWithValue("reason", "NoHealthyMachine")))
	})
	h.hasKubeadmData()
}
