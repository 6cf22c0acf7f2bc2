package vms

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/cli/localdir"
	"github.com/millwright-dev/millwright/internal/manager"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/program"
)

func TestMain(m *testing.M) {
	program.Main()
	env.AtATime(4)
	os.Exit(m.Run())
}

// Timeouts: at least four times what was measured on two cores, with four tests running concurrently.
const (
	soon    = env.WaitTimeout  // a control plane, or the first sign of a VM
	joining = 10 * time.Minute // a few VMs become nodes, or recover after a crash
)

// commandFunc returns the command of a version of the program.
type commandFunc func(ctx context.Context, args ...string) *exec.Cmd

// cluster is a running "millwright up".
type cluster struct {
	t     *testing.T
	dir   string
	flags []string
	// environment is added to the test's environment for "up".
	environment []string
	// command returns the command of "up". The default is program.Command.
	command commandFunc

	client client.WithWatch
	// images serves the guest's files.
	images *httptest.Server

	// process is nil while "up" is not running.
	process *program.Process
}

// guest finds the files that "make guest" built.
func guest(t *testing.T) string {
	t.Helper()
	cache, err := localdir.Cache()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cache, "guest", "current")
	for _, file := range []string{"vmlinux", "initrd", "boot.raw", "cmdline"} {
		if _, err := os.Stat(filepath.Join(dir, file)); err != nil {
			t.Fatalf("there is no guest to boot, run \"make guest\": %v", err)
		}
	}
	return dir
}

// up starts a cluster for a test that runs in parallel. At the end of the test, it is stopped gracefully, and
// nothing may remain.
func up(t *testing.T, flags ...string) *cluster {
	t.Helper()
	c := prepare(t, flags...)
	c.start()
	return c
}

// prepare is like up, for a cluster that the test itself starts.
func prepare(t *testing.T, flags ...string) *cluster {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a control plane and virtual machines; -short wants neither")
	}
	t.Parallel()
	// Paths of sockets must be short, and a test's name is long.
	dir, err := os.MkdirTemp("", "vms-")
	if err != nil {
		t.Fatal(err)
	}
	images := httptest.NewServer(http.FileServer(http.Dir(guest(t))))
	c := &cluster{t: t, dir: dir, flags: flags, images: images}
	t.Cleanup(func() {
		if c.process != nil {
			if t.Failed() {
				program.LogConsoles(c.t, c.dir)
			}
			c.stop()
		}
		images.Close()
		if left := c.processes(""); len(left) > 0 {
			t.Errorf("processes are left: %v", left)
			c.killAll("")
		}
		if t.Failed() {
			t.Logf("its logs are in %s", dir)
			return
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return c
}

// start starts the cluster in its directory, and waits until it is ready.
func (c *cluster) start() {
	c.t.Helper()
	create := program.Command
	if c.command != nil {
		create = c.command
	}
	command := create(context.Background(), append([]string{
		"up", "--dir", c.dir, "--api-port", "0", "--image-port", "0", "--image-servers", "127.0.0.1", "--unsafe-no-fsync", "--v", "1",
	}, c.flags...)...)
	command.Env = append(command.Environ(), c.environment...)
	c.process = program.StartOther(c.t, command)
	c.eventually(soon, func(g gomega.Gomega) { g.Expect(c.process.Output.String()).To(gomega.ContainSubstring("Ready after")) })
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(c.dir, "kubeconfig"))
	if err != nil {
		c.t.Fatal(err)
	}
	config.QPS = -1
	if c.client, err = client.NewWithWatch(config, client.Options{Scheme: manager.Scheme()}); err != nil {
		c.t.Fatal(err)
	}
}

// stop stops the cluster gracefully.
func (c *cluster) stop() {
	c.t.Helper()
	c.process.Stop()
	c.process = nil
}

// kill kills only the process of "up".
func (c *cluster) kill() {
	c.process.Kill()
	c.process = nil
}

// eventually waits until the check succeeds.
func (c *cluster) eventually(within time.Duration, check func(g gomega.Gomega)) {
	c.t.Helper()
	g := gomega.NewWithT(c.t)
	g.Eventually(func(g gomega.Gomega) { check(g) }).WithTimeout(within).WithPolling(100 * time.Millisecond).Should(gomega.Succeed())
}

func (c *cluster) create(objects ...client.Object) {
	c.t.Helper()
	for _, object := range objects {
		if err := c.client.Create(c.t.Context(), object); err != nil {
			c.t.Fatal(err)
		}
	}
}

// processes finds the processes of this cluster whose command line contains the given arguments.
func (c *cluster) processes(texts string) []program.Running {
	c.t.Helper()
	return program.Processes(c.t, c.dir, texts)
}

// only waits until there is exactly one such process, and returns it.
func (c *cluster) only(texts string) program.Running {
	c.t.Helper()
	var found []program.Running
	c.eventually(soon, func(g gomega.Gomega) {
		found = c.processes(texts)
		g.Expect(found).To(gomega.HaveLen(1))
	})
	return found[0]
}

// killAll kills these processes.
func (c *cluster) killAll(texts string) {
	for _, p := range c.processes(texts) {
		_ = syscall.Kill(p.PID, syscall.SIGKILL) // it may have exited already
	}
}

// kernelBoot is the part of a ProviderSpec that specifies what a VM boots.
func (c *cluster) kernelBoot() string {
	commandLine, err := os.ReadFile(filepath.Join(guest(c.t), "cmdline"))
	if err != nil {
		c.t.Fatal(err)
	}
	return fmt.Sprintf(`"kernelBoot":{"kernel":{"url":"%[1]s/vmlinux"},"initrd":{"url":"%[1]s/initrd"},"commandLine":%[2]q}`,
		c.images.URL, bytes.TrimSpace(commandLine))
}

func (c *cluster) diskBoot() string {
	return fmt.Sprintf(`"image":{"url":"%s/boot.raw","format":"Raw"}`, c.images.URL)
}

// pool creates a MachineDeployment of VMs that boot that way.
func (c *cluster) pool(name string, replicas int32, boot string, tune ...func(*v1alpha1.MachineDeployment)) *v1alpha1.MachineDeployment {
	c.t.Helper()
	spec := `{"vmPool":"default","size":"xsmall","rootFsSize":1,"tags":{"kubernetes.io/cluster/test":"1","kubernetes.io/role/node":"1"},` + boot + `}`
	labels := map[string]string{"name": name}
	deployment := &v1alpha1.MachineDeployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: v1alpha1.MachineDeploymentSpec{
			Replicas: replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: v1alpha1.MachineTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       v1alpha1.MachineSpec{Class: v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: name}},
			},
		},
	}
	for _, t := range tune {
		t(deployment)
	}
	c.create(
		&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Data:       map[string][]byte{"userData": []byte(c.userData())},
		},
		&v1alpha1.MachineClass{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Provider: "vm",
			ProviderSpec: runtime.RawExtension{Raw: []byte(spec)},
			SecretRef:    &corev1.SecretReference{Namespace: "default", Name: name},
		},
		deployment,
	)
	return deployment
}

// userData returns user data that makes the guest a node of this cluster.
func (c *cluster) userData() string {
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(c.dir, "kubeconfig"))
	if err != nil {
		c.t.Fatal(err)
	}
	server := strings.Replace(config.Host, "127.0.0.1", "10.77.0.2", 1)
	return `#millwright-guest
server: ` + server + `
token: <<BOOTSTRAP_TOKEN>>
nodeName: <<MACHINE_NAME>>
providerID: millwright:///default/${uuid}
taints:
- {key: example.org/no-pods, effect: NoSchedule}
`
}

func (c *cluster) scale(deployment *v1alpha1.MachineDeployment, replicas int32) {
	c.t.Helper()
	patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas))
	if err := c.client.Patch(c.t.Context(), deployment, patch); err != nil {
		c.t.Fatal(err)
	}
}

// settled checks that a MachineDeployment has its Machines, all of them Running, each with a VM, a Ready node and
// one QEMU. It returns the names of the Machines.
func (c *cluster) settled(g gomega.Gomega, deployment *v1alpha1.MachineDeployment) []string {
	ctx := c.t.Context()
	g.Expect(c.client.Get(ctx, client.ObjectKeyFromObject(deployment), deployment)).To(gomega.Succeed())
	desired := int(deployment.Spec.Replicas)
	g.Expect(deployment.Status.AvailableReplicas).To(gomega.BeEquivalentTo(desired), "available replicas")
	machines := &v1alpha1.MachineList{}
	g.Expect(c.client.List(ctx, machines, client.MatchingLabels{"name": deployment.Name})).To(gomega.Succeed())
	g.Expect(machines.Items).To(gomega.HaveLen(desired), "machines")
	vms := &vmv1alpha1.VirtualMachineList{}
	g.Expect(c.client.List(ctx, vms)).To(gomega.Succeed())
	var names []string
	for i := range machines.Items {
		machine := &machines.Items[i]
		names = append(names, machine.Name)
		g.Expect(machine.Status.CurrentStatus.Phase).To(gomega.Equal(v1alpha1.MachineRunning), machine.Name)
		node := &corev1.Node{}
		g.Expect(c.client.Get(ctx, client.ObjectKey{Name: machine.Name}, node)).To(gomega.Succeed())
		g.Expect(node.Spec.ProviderID).To(gomega.Equal(machine.Spec.ProviderID))
		g.Expect(ready(node)).To(gomega.BeTrue(), "node "+node.Name)
		g.Expect(c.vmOf(vms, machine)).NotTo(gomega.BeNil(), "VM of "+machine.Name)
	}
	return names
}

func ready(node *corev1.Node) bool {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// vmOf finds a Machine's VM by its provider ID.
func (c *cluster) vmOf(vms *vmv1alpha1.VirtualMachineList, machine *v1alpha1.Machine) *vmv1alpha1.VirtualMachine {
	for i := range vms.Items {
		if vm := &vms.Items[i]; machine.Spec.ProviderID == "millwright:///"+vm.Namespace+"/"+vm.Spec.UUID {
			return vm
		}
	}
	return nil
}

// awaitSettled waits until the MachineDeployment is settled, and as many QEMUs run as there are Machines.
func (c *cluster) awaitSettled(deployment *v1alpha1.MachineDeployment) []string {
	c.t.Helper()
	var names []string
	c.eventually(joining, func(g gomega.Gomega) {
		names = c.settled(g, deployment)
		g.Expect(c.processes("qemu-system")).To(gomega.HaveLen(len(names)), "QEMUs")
	})
	return names
}
