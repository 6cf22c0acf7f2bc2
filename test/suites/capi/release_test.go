package capi

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/millwright-dev/millwright/internal/local/controlplane"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestRelease_TemplateWorks checks that the released template for simulated machines, as rendered by
// clusterctl, results in machines.
func TestRelease_TemplateWorks(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newHarness(t)
	h.released("released", "--flavor", "sim", "--worker-machine-count", "2")
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

// released creates the objects of a released template, as rendered by clusterctl.
func (h *harness) released(cluster string, args ...string) {
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
	clusterctl, err := coreFile("clusterctl")
	if err != nil {
		h.t.Fatal(err)
	}
	render := exec.CommandContext(h.t.Context(), clusterctl, append([]string{
		"--config", filepath.Join(h.dir, contract, "clusterctl.yaml"), "generate", "cluster", cluster,
		"--infrastructure", "millwright:v0.1.0", "--target-namespace", h.Namespace, "--kubernetes-version", "v1.37.2",
	}, args...)...)
	render.Env = []string{"HOME=" + h.dir, "XDG_CONFIG_HOME=" + h.dir, "CLUSTERCTL_DISABLE_VERSIONCHECK=true"}
	rendered, err := render.Output()
	if err != nil {
		h.t.Fatalf("clusterctl generate cluster: %v", err)
	}
	if err := controlplane.ApplyText(h.t.Context(), h.Client, rendered, h.Namespace); err != nil {
		h.t.Fatal(err)
	}
}

func phase(machine unstructured.Unstructured) string { return text(machine, "status", "phase") }
