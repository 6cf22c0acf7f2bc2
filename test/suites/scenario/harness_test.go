package scenario

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/program"
)

func TestMain(m *testing.M) {
	program.Main()
	env.AtATime(6)
	env.Main(m)
}

// scenario has a control and a target cluster, and a simulated provider whose VMs outlive the manager.
type scenario struct {
	*env.Env
	t *testing.T
	// dir contains the kubeconfigs and the simulated VMs.
	dir string
	// cloud is this process's view of the simulated provider.
	cloud *sim.Cloud
	// earlier are the nodes that existed before. All tests share the target cluster, and with -count=2 an earlier
	// run has used the same pool names.
	earlier map[string]bool
}

// newScenario is for a test that runs in parallel with others.
func newScenario(t *testing.T, options ...env.Option) *scenario {
	t.Helper()
	t.Parallel()
	return newScenarioAlone(t, options...)
}

// newScenarioAlone is for a test that runs before those others.
func newScenarioAlone(t *testing.T, options ...env.Option) *scenario {
	t.Helper()
	w := &scenario{Env: env.NewPair(t, options...), t: t, dir: t.TempDir(), earlier: map[string]bool{}}
	nodes := &corev1.NodeList{}
	if err := w.Target.Client.List(t.Context(), nodes); err != nil {
		t.Fatal(err)
	}
	for _, node := range nodes.Items {
		w.earlier[node.Name] = true
	}
	cloud, err := sim.OpenCloud(w.simDir(), sim.CloudOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.cloud = cloud
	t.Cleanup(func() {
		if err := cloud.Close(); err != nil {
			t.Error(err)
		}
	})
	// The manager has exactly the shipped roles.
	env.WriteKubeconfig(t, w.path("control"), w.UserWith(t, "config/rbac/control-role.yaml"))
	env.WriteKubeconfig(t, w.path("target"), w.Target.UserWith(t, "config/rbac/target-role.yaml", "config/rbac/target-role-sim.yaml"))
	return w
}

func (w *scenario) simDir() string { return filepath.Join(w.dir, "sim") }

func (w *scenario) path(name string) string { return filepath.Join(w.dir, name+".kubeconfig") }

// millwright starts the program. It is killed at the end of the test if it is still running.
func millwright(t *testing.T, args ...string) *program.Process {
	t.Helper()
	p := program.Start(t, args...)
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("millwright %s printed:\n%s", strings.Join(args, " "), p.Output.Tail(200))
		}
	})
	return p
}

// manager starts a manager. It keeps its leases on a busy machine, and releases them when it is stopped.
func (w *scenario) manager(more ...string) *program.Process {
	w.t.Helper()
	return millwright(w.t, append(w.managerArgs(), more...)...)
}

func (w *scenario) managerArgs() []string {
	return []string{
		"manager", "--driver", "sim", "--sim-dir", w.simDir(), "--sim-heartbeat", "0", "--namespace", w.Namespace,
		"--control-kubeconfig", w.path("control"), "--target-kubeconfig", w.path("target"), "--port", "0",
	}
}

// longLeases starts a manager that keeps its leases even if it cannot renew them for a minute.
func (w *scenario) longLeases(more ...string) *program.Process {
	w.t.Helper()
	return w.manager(append([]string{"--leader-elect-lease-duration", "2m", "--leader-elect-renew-deadline", "90s"}, more...)...)
}

// pool creates a class, its Secret, and a MachineDeployment of that many Machines.
func (w *scenario) pool(name string, replicas int32, providerSpec string) *v1alpha1.MachineDeployment {
	w.t.Helper()
	w.create(secret(w.Namespace, name), class(w.Namespace, name, providerSpec))
	deployment := deploymentOf(w.Namespace, name, replicas)
	w.create(deployment)
	return deployment
}

func (w *scenario) create(objects ...client.Object) {
	w.t.Helper()
	for _, object := range objects {
		if err := w.Client.Create(w.t.Context(), object); err != nil {
			w.t.Fatal(err)
		}
	}
}

func secret(namespace, name string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Data:       map[string][]byte{"userData": []byte("token: <<BOOTSTRAP_TOKEN>>")},
	}
}

func class(namespace, name, providerSpec string) *v1alpha1.MachineClass {
	return &v1alpha1.MachineClass{
		ObjectMeta:   metav1.ObjectMeta{Namespace: namespace, Name: name},
		Provider:     "sim",
		ProviderSpec: runtime.RawExtension{Raw: []byte(providerSpec)},
		SecretRef:    &corev1.SecretReference{Namespace: namespace, Name: name},
	}
}

func deploymentOf(namespace, name string, replicas int32) *v1alpha1.MachineDeployment {
	labels := map[string]string{"name": name}
	return &v1alpha1.MachineDeployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1alpha1.MachineDeploymentSpec{
			Replicas: replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: v1alpha1.MachineTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: v1alpha1.MachineSpec{
					Class: v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: name},
					NodeTemplateSpec: v1alpha1.NodeTemplateSpec{
						ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"pool": name}},
						Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "dedicated", Value: name, Effect: corev1.TaintEffectNoSchedule}}},
					},
				},
			},
		},
	}
}

// scale changes the number of Machines.
func (w *scenario) scale(deployment *v1alpha1.MachineDeployment, replicas int32) {
	w.t.Helper()
	w.patch(deployment, fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas))
}

// eventually waits until the check succeeds.
func (w *scenario) eventually(check func(g gomega.Gomega)) {
	w.t.Helper()
	g := gomega.NewWithT(w.t)
	g.Eventually(func(g gomega.Gomega) { check(g) }).WithTimeout(env.WaitTimeout).WithPolling(100 * time.Millisecond).Should(gomega.Succeed())
}

// settled checks that a MachineDeployment has exactly its Machines, all of them Running, with a VM and a node
// each.
func (w *scenario) settled(ctx context.Context, g gomega.Gomega, deployment *v1alpha1.MachineDeployment) {
	g.Expect(w.Client.Get(ctx, client.ObjectKeyFromObject(deployment), deployment)).To(gomega.Succeed())
	desired := deployment.Spec.Replicas
	g.Expect(deployment.Status.AvailableReplicas).To(gomega.Equal(desired), "available replicas")
	g.Expect(deployment.Status.Replicas).To(gomega.Equal(desired), "replicas")
	g.Expect(deployment.Status.ObservedGeneration).To(gomega.Equal(deployment.Generation), "observed generation")

	machines := &v1alpha1.MachineList{}
	g.Expect(w.Client.List(ctx, machines, client.InNamespace(w.Namespace))).To(gomega.Succeed())
	g.Expect(machines.Items).To(gomega.HaveLen(int(desired)), "machines")
	vms, err := w.cloud.VMs()
	g.Expect(err).NotTo(gomega.HaveOccurred())
	byID := map[string]string{}
	for _, vm := range vms {
		byID[vm.ProviderID] = vm.Machine
	}
	g.Expect(byID).To(gomega.HaveLen(int(desired)), "VMs")
	for _, machine := range machines.Items {
		g.Expect(machine.Status.CurrentStatus.Phase).To(gomega.Equal(v1alpha1.MachineRunning), machine.Name)
		g.Expect(byID).To(gomega.HaveKeyWithValue(machine.Spec.ProviderID, machine.Name))
	}
	g.Expect(w.nodesOf(ctx, g, deployment.Name)).To(gomega.HaveLen(int(desired)), "nodes")
}

// nodesOf returns the nodes of a pool, whose names begin with its name.
func (w *scenario) nodesOf(ctx context.Context, g gomega.Gomega, pool string) []corev1.Node {
	nodes := &corev1.NodeList{}
	g.Expect(w.Target.Client.List(ctx, nodes)).To(gomega.Succeed())
	var own []corev1.Node
	for _, node := range nodes.Items {
		if strings.HasPrefix(node.Name, pool+"-") && !w.earlier[node.Name] {
			own = append(own, node)
		}
	}
	return own
}

// tokens returns the remaining bootstrap tokens.
func (w *scenario) tokens(ctx context.Context, g gomega.Gomega) []corev1.Secret {
	secrets := &corev1.SecretList{}
	g.Expect(w.Target.Client.List(ctx, secrets, client.InNamespace("kube-system"))).To(gomega.Succeed())
	var tokens []corev1.Secret
	for _, secret := range secrets.Items {
		if secret.Type == corev1.SecretTypeBootstrapToken && strings.Contains(string(secret.Data["description"]), w.Namespace+"/") {
			tokens = append(tokens, secret)
		}
	}
	return tokens
}
