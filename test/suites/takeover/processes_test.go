package takeover

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/fixture"
	"github.com/millwright-dev/millwright/test/support/program"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// startAs starts the program under the name of an MCM process, on a free port.
func startAs(t *testing.T, name, kubeconfig, namespace string, flags ...string) *program.Process {
	t.Helper()
	command := program.Command(context.Background(), append([]string{
		"--control-kubeconfig=" + kubeconfig, "--target-kubeconfig=" + kubeconfig, "--namespace=" + namespace,
		"--port=0", "--v=3", "--logtostderr", "--cloud-provider=aws", "--controller-start-interval=0s",
	}, flags...)...)
	command.Args[0] = "./" + name
	process := program.StartOther(t, command)
	t.Cleanup(func() {
		process.Stop()
		if t.Failed() {
			t.Logf("%s:\n%s", name, process.Output.Tail(40))
		}
	})
	return process
}

// TestTakeover_BothProcesses checks that two processes with MCM's names create the nodes of a MachineDeployment
// together. A third process, with the lease of one of them, stands by.
func TestTakeover_BothProcesses(t *testing.T) {
	tier.All(t)
	t.Parallel()
	e := env.New(t)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	env.WriteKubeconfig(t, kubeconfig, e.Admin)
	sets := startAs(t, "machine-controller-manager", kubeconfig, e.Namespace, "--safety-up=2", "--safety-down=1", "--machine-safety-overshooting-period=300ms")
	machines := startAs(t, "machine-controller", kubeconfig, e.Namespace, "--driver=sim", "--machine-drain-timeout=300")
	g := gomega.NewWithT(t)
	for _, process := range []*program.Process{sets, machines} {
		g.Eventually(process.Output.String).WithTimeout(waitTimeout).Should(gomega.ContainSubstring("--cloud-provider=aws"))
	}

	pool := fixture.In(e.Namespace, fixture.Deployment(2, fixture.OfClass(fixture.Class)))
	for _, object := range []client.Object{fixture.In(e.Namespace, fixture.Secret()), fixture.In(e.Namespace, fixture.MachineClass(func(c *v1alpha1.MachineClass) { c.Provider = "sim" })), pool} {
		must(t, e.Client.Create(t.Context(), object))
	}
	g.Eventually(func() int32 {
		must(t, e.Client.Get(t.Context(), client.ObjectKeyFromObject(pool), pool))
		return pool.Status.AvailableReplicas
	}).WithTimeout(waitTimeout).Should(gomega.BeEquivalentTo(2))

	second := startAs(t, "machine-controller", kubeconfig, e.Namespace, "--driver=sim")
	g.Eventually(second.Output.String).WithTimeout(waitTimeout).Should(gomega.ContainSubstring("standing by: another manager holds the leases"))

	must(t, e.Client.Delete(t.Context(), pool))
	g.Eventually(func() []v1alpha1.Machine {
		list := &v1alpha1.MachineList{}
		must(t, e.Client.List(t.Context(), list, client.InNamespace(e.Namespace)))
		return list.Items
	}).WithTimeout(waitTimeout).Should(gomega.BeEmpty())
}
