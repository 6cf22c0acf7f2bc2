package capi

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/millwright-dev/millwright/internal/local/controlplane"
	"github.com/millwright-dev/millwright/test/support/capicore"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestRelease_TemplateWorks checks that the released template for simulated machines, as rendered by
// clusterctl, results in machines.
func TestRelease_TemplateWorks(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newHarness(t)
	h.released(contract, "released", nil, "--flavor", "sim", "--worker-machine-count", "2")
	manager := h.manager()
	h.eventually(func(g gomega.Gomega) {
		machines := h.list(g, "Machine")
		g.Expect(machines).To(gomega.HaveLen(2))
		for _, machine := range machines {
			g.Expect(phase(machine)).To(gomega.Equal("Provisioned"), machine.GetName())
		}
		g.Expect(h.vms(g)).To(gomega.HaveLen(2))
		capacity := h.get(g, "MillwrightMachineTemplate", "released-workers").Object["status"]
		g.Expect(capacity).To(gomega.HaveKeyWithValue("capacity", gomega.HaveKeyWithValue("memory", "4Gi")))
	})

	// Everything that was created for the Cluster is deleted with it.
	h.remove("Cluster", "released")
	h.eventually(func(g gomega.Gomega) {
		g.Expect(h.list(g, "Machine")).To(gomega.BeEmpty())
		g.Expect(h.list(g, "MillwrightMachineTemplate")).To(gomega.BeEmpty())
		g.Expect(h.vms(g)).To(gomega.BeEmpty())
	})
	manager.Stop()
}

// TestRelease_ClusterClassWorks checks that the core and the kubeadm providers create a cluster from the released
// ClusterClass, with the values of its variables, and that a changed variable replaces only what depends on it.
func TestRelease_ClusterClassWorks(t *testing.T) {
	tier.All(t)
	t.Parallel()
	for _, contract := range []string{"v1beta1", "v1beta2"} {
		t.Run(contract, func(t *testing.T) {
			t.Parallel()
			h := newKubeadmHarness(t)
			h.managerOfVMs()
			h.credentials("infrastructure")
			h.released(contract, h.cluster, []string{
				"CONTROL_PLANE_ENDPOINT_HOST=127.0.0.1", fmt.Sprintf("CONTROL_PLANE_ENDPOINT_PORT=%d", h.ControlPlane.Port()),
				"MILLWRIGHT_IMAGE_URL=https://images.example.com/node.qcow2", "MILLWRIGHT_IMAGE_CHECKSUM=sha256:" + strings.Repeat("0", 64),
				"MILLWRIGHT_VM_POOL=" + h.Namespace, "MILLWRIGHT_CREDENTIALS_SECRET=infrastructure", "MILLWRIGHT_ROOT_FS_SIZE=30",
			}, "--flavor", "topology", "--control-plane-machine-count", "1", "--worker-machine-count", "2")
			h.eventually(func(g gomega.Gomega) {
				g.Expect(h.controlPlaneMachines(g)).To(gomega.HaveLen(1))
				g.Expect(names(h.workers(g))).To(gomega.HaveLen(2))
				g.Expect(h.list(g, "VirtualMachine")).To(gomega.HaveLen(1), "the workers wait for the control plane")
				// YAML may break the line at a space.
				g.Expect(strings.Join(strings.Fields(h.bootstrapData(g)), " ")).To(gomega.ContainSubstring("millwright:///" + h.Namespace + "/{{ v1.instance_id }}"))
			})
			g := gomega.NewWithT(t)
			g.Expect(h.workerSizes(g)).To(gomega.HaveEach("medium"))
			checks := h.list(g, "MachineHealthCheck")
			g.Expect(names(checks)).To(gomega.HaveLen(1))
			g.Expect(checks[0].Object["spec"]).To(gomega.HaveKeyWithValue("checks", gomega.HaveKeyWithValue("nodeStartupTimeoutSeconds", gomega.BeEquivalentTo(1200))))
			before := h.controlPlaneMachines(g)

			h.patch("Cluster", h.cluster, h.withVariable(g, "workerSize", "large"))
			// No worker is available, so only the surge is replaced.
			h.eventually(func(g gomega.Gomega) { g.Expect(h.workerSizes(g)).To(gomega.ContainElement("large")) })
			g.Expect(h.controlPlaneMachines(g)).To(gomega.Equal(before))

			h.remove("Cluster", h.cluster)
			h.eventually(func(g gomega.Gomega) {
				for _, kind := range []string{"Cluster", "MillwrightCluster", "KubeadmControlPlane", "Machine", "MillwrightMachine", "VirtualMachine"} {
					g.Expect(names(h.list(g, kind))).To(gomega.BeEmpty(), kind)
				}
			})
		})
	}
}

// credentials creates the Secret of the driver. It is empty, so that the VMs are in the management cluster.
func (h *harness) credentials(name string) {
	h.t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: h.Namespace, Name: name}}
	if err := h.Client.Create(h.t.Context(), secret); err != nil {
		h.t.Fatal(err)
	}
}

// workerSizes returns the size of each worker.
func (h *kubeadmHarness) workerSizes(g gomega.Gomega) []string {
	var sizes []string
	for _, worker := range h.workers(g) {
		infra := h.get(g, "MillwrightMachine", text(worker, "spec", "infrastructureRef", "name"))
		g.Expect(infra.Object["spec"]).To(gomega.HaveKeyWithValue("providerSpec", gomega.And(
			gomega.HaveKeyWithValue("rootFsSize", gomega.BeEquivalentTo(30)), gomega.HaveKeyWithValue("vmPool", h.Namespace),
			gomega.HaveKeyWithValue("tags", gomega.HaveKeyWithValue("kubernetes.io/cluster/"+h.cluster, "1")))))
		sizes = append(sizes, text(*infra, "spec", "providerSpec", "size"))
	}
	return sizes
}

// withVariable returns a patch that sets one variable of a Cluster's class, and keeps the others.
func (h *harness) withVariable(g gomega.Gomega, name, value string) string {
	variables, _, err := unstructured.NestedSlice(h.get(g, "Cluster", h.cluster).Object, "spec", "topology", "variables")
	g.Expect(err).NotTo(gomega.HaveOccurred())
	for _, entry := range variables {
		if variable, ok := entry.(map[string]any); ok && variable["name"] == name {
			variable["value"] = value
		}
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"topology": map[string]any{"variables": variables}}})
	g.Expect(err).NotTo(gomega.HaveOccurred())
	return string(patch)
}

// released creates the objects of a released template for a contract, as rendered by clusterctl with variables of its
// environment.
func (h *harness) released(contract, cluster string, variables []string, args ...string) {
	h.t.Helper()
	root, err := env.Sources()
	if err != nil {
		h.t.Fatal(err)
	}
	binaries, err := env.Binaries()
	if err != nil {
		h.t.Fatal(err)
	}
	write := exec.CommandContext(h.t.Context(), filepath.Join(root, "hack", "clusterctl.sh"), h.dir, "v0.1.0", "millwright")
	write.Env = append(os.Environ(), "KUBECTL="+filepath.Join(binaries, "kubectl"))
	if out, err := write.CombinedOutput(); err != nil {
		h.t.Fatalf("hack/clusterctl.sh: %v\n%s", err, out)
	}
	clusterctl, err := capicore.File(version, "clusterctl")
	if err != nil {
		h.t.Fatal(err)
	}
	render := exec.CommandContext(h.t.Context(), clusterctl, append([]string{
		"--config", filepath.Join(h.dir, contract, "clusterctl.yaml"), "generate", "cluster", cluster,
		"--infrastructure", "millwright:v0.1.0", "--target-namespace", h.Namespace, "--kubernetes-version", "v1.37.2",
	}, args...)...)
	render.Env = append([]string{"HOME=" + h.dir, "XDG_CONFIG_HOME=" + h.dir, "CLUSTERCTL_DISABLE_VERSIONCHECK=true"}, variables...)
	rendered, err := render.Output()
	if err != nil {
		h.t.Fatalf("clusterctl generate cluster: %v", err)
	}
	if err := controlplane.ApplyText(h.t.Context(), h.Client, rendered, h.Namespace); err != nil {
		h.t.Fatal(err)
	}
}

func phase(machine unstructured.Unstructured) string { return text(machine, "status", "phase") }
