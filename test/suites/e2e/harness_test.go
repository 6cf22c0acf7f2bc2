package e2e

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	vmdriver "github.com/millwright-dev/millwright/drivers/vm"
	"github.com/millwright-dev/millwright/internal/cli/cluster/load"
	"github.com/millwright-dev/millwright/internal/local/controlplane"
	"github.com/millwright-dev/millwright/internal/manager"
	"github.com/millwright-dev/millwright/internal/vm/network/dialer"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/program"
)

func TestMain(m *testing.M) {
	program.Main()
	os.Exit(m.Run())
}

// environment is the variable that enables these tests.
const environment = "MILLWRIGHT_E2E"

const (
	soon = env.WaitTimeout
	// late is how long a few machines and their Pods may take on a busy host without KVM.
	late = 40 * time.Minute
	// namespace is the namespace of everything in the examples.
	namespace = "default"
	// image is the container image that is included in the guest.
	image = "millwright.dev/container:1"
)

// cluster is a running "millwright up --guest full" with the examples.
type cluster struct {
	t       *testing.T
	dir     string
	images  string // URL of the guest's files
	process *program.Process
	config  *rest.Config
	client  client.Client
}

// up starts a cluster with the examples.
func up(t *testing.T, flags ...string) *cluster {
	t.Helper()
	c := start(t, flags...)
	// Two machines, because each one costs minutes.
	c.apply("*.yaml", 2)
	return c
}

// start starts a cluster, with the guest's files on a server of the test.
func start(t *testing.T, flags ...string) *cluster {
	t.Helper()
	return startServing(t, builtGuest(t, "guest-full"), append([]string{"--guest", "full"}, flags...)...)
}

// startServing starts a cluster, with the files of a directory on a server of the test.
func startServing(t *testing.T, files string, flags ...string) *cluster {
	t.Helper()
	dir, err := os.MkdirTemp("", "e2e-") // paths of sockets must be short
	if err != nil {
		t.Fatal(err)
	}
	images := httptest.NewServer(http.FileServer(http.Dir(files)))
	c := &cluster{t: t, dir: dir, images: images.URL}
	t.Cleanup(func() { c.end(t, images) })
	c.process = program.Start(t, append([]string{
		"up", "--dir", dir, "--api-port", "0", "--image-port", "0", "--image-servers", "127.0.0.1", "--unsafe-no-fsync", "--v", "1",
	}, flags...)...)
	c.eventually(soon, func(g gomega.Gomega) { g.Expect(c.process.Output.String()).To(gomega.ContainSubstring("Ready after")) })
	if c.config, err = clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "kubeconfig")); err != nil {
		t.Fatal(err)
	}
	c.config.QPS = -1
	if c.client, err = client.New(c.config, client.Options{Scheme: manager.Scheme()}); err != nil {
		t.Fatal(err)
	}
	return c
}

// end stops the cluster; nothing may remain.
func (c *cluster) end(t *testing.T, images *httptest.Server) {
	if c.process != nil {
		if t.Failed() {
			program.LogConsoles(t, c.dir)
		}
		c.process.Stop()
	}
	images.Close()
	if left := program.Processes(t, c.dir, ""); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
	if t.Failed() {
		t.Logf("its logs are in %s", c.dir)
		return
	}
	if err := os.RemoveAll(c.dir); err != nil {
		t.Error(err)
	}
}

// apply applies files of examples/full, which contain the default ports of "up", with that many machines and
// Pods.
func (c *cluster) apply(pattern string, replicas int) {
	c.t.Helper()
	own := strings.NewReplacer("replicas: 3", fmt.Sprintf("replicas: %d", replicas), "http://127.0.0.1:16480", c.images, ":16443", ":"+c.port())
	files := fstest.MapFS{}
	paths, err := filepath.Glob("../../../examples/full/" + pattern)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			c.t.Fatal(err)
		}
		files[filepath.Base(path)] = &fstest.MapFile{Data: []byte(own.Replace(string(text)))}
	}
	if err := controlplane.Apply(c.t.Context(), c.config, files, "*.yaml", namespace); err != nil {
		c.t.Fatal(err)
	}
}

// port returns the API server's port.
func (c *cluster) port() string {
	_, port, _ := strings.Cut(strings.TrimPrefix(c.config.Host, "https://"), ":")
	return port
}

// in returns the cluster for a subtest.
func (c *cluster) in(t *testing.T) *cluster {
	part := *c
	part.t = t
	return &part
}

// eventually waits until the check succeeds.
func (c *cluster) eventually(within time.Duration, check func(g gomega.Gomega)) {
	c.t.Helper()
	g := gomega.NewWithT(c.t)
	g.Eventually(func(g gomega.Gomega) { check(g) }).WithTimeout(within).WithPolling(500 * time.Millisecond).Should(gomega.Succeed())
}

// patch changes an object by a JSON merge patch.
func (c *cluster) patch(object client.Object, name, patch string) {
	c.t.Helper()
	object.SetNamespace(namespace)
	object.SetName(name)
	if err := c.client.Patch(c.t.Context(), object, client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
		c.t.Fatal(err)
	}
}

// machines returns the current Machines by name.
func (c *cluster) machines(g gomega.Gomega) map[string]*v1alpha1.Machine {
	list := &v1alpha1.MachineList{}
	g.Expect(c.client.List(c.t.Context(), list, client.InNamespace(namespace))).To(gomega.Succeed())
	all := map[string]*v1alpha1.Machine{}
	for i := range list.Items {
		all[list.Items[i].Name] = &list.Items[i]
	}
	return all
}

// settled checks that the pool has its machines with Ready nodes, and that "web" has all its Pods.
func (c *cluster) settled(g gomega.Gomega) (names []string) {
	ctx, key := c.t.Context(), client.ObjectKey{Namespace: namespace, Name: "pool"}
	pool := &v1alpha1.MachineDeployment{}
	g.Expect(c.client.Get(ctx, key, pool)).To(gomega.Succeed())
	g.Expect(pool.Status.ObservedGeneration).To(gomega.Equal(pool.Generation))
	g.Expect(pool.Status.UpdatedReplicas).To(gomega.Equal(pool.Spec.Replicas), "updated machines")
	g.Expect(pool.Status.AvailableReplicas).To(gomega.Equal(pool.Spec.Replicas), "available machines")
	machines := c.machines(g)
	g.Expect(machines).To(gomega.HaveLen(int(pool.Spec.Replicas)))
	for name, machine := range machines {
		g.Expect(machine.Status.CurrentStatus.Phase).To(gomega.Equal(v1alpha1.MachineRunning), name)
		g.Expect(ready(c.node(g, name))).To(gomega.BeTrue(), "node "+name)
		names = append(names, name)
	}
	web := &appsv1.Deployment{}
	g.Expect(c.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "web"}, web)).To(gomega.Succeed())
	g.Expect(web.Status.AvailableReplicas).To(gomega.Equal(*web.Spec.Replicas), "Pods that serve")
	g.Expect(web.Status.Replicas).To(gomega.Equal(*web.Spec.Replicas), "Pods")
	return names
}

// awaitSettled waits for that, and returns the names of the machines.
func (c *cluster) awaitSettled() (names []string) {
	c.t.Helper()
	c.eventually(late, func(g gomega.Gomega) { names = c.settled(g) })
	return names
}

func (c *cluster) node(g gomega.Gomega, name string) *corev1.Node {
	node := &corev1.Node{}
	g.Expect(c.client.Get(c.t.Context(), client.ObjectKey{Name: name}, node)).To(gomega.Succeed())
	return node
}

func ready(node *corev1.Node) bool { return readyCondition(node).Status == corev1.ConditionTrue }

func readyCondition(node *corev1.Node) corev1.NodeCondition {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition
		}
	}
	return corev1.NodeCondition{}
}

// vmOf returns the virtual machine of a Machine.
func (c *cluster) vmOf(machine string) *vmv1alpha1.VirtualMachine {
	c.t.Helper()
	list := &vmv1alpha1.VirtualMachineList{}
	if err := c.client.List(c.t.Context(), list); err != nil {
		c.t.Fatal(err)
	}
	for i := range list.Items {
		if vmdriver.MachineOf(&list.Items[i]).Name == machine {
			return &list.Items[i]
		}
	}
	c.t.Fatalf("%s has no virtual machine", machine)
	return nil
}

// requests sends requests to the service through the nodes, as the demo does, until end is called, which returns
// the results.
func (c *cluster) requests() (end func() load.Count) {
	c.t.Helper()
	ctx, cancel := context.WithCancel(c.t.Context())
	guests, err := dialer.New(ctx, filepath.Join(c.dir, "switch.sock"), netip.MustParseAddr("10.77.0.5"), netip.MustParsePrefix("10.77.0.0/16"),
		slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		c.t.Fatal(err)
	}
	service := &corev1.Service{}
	if err := c.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "web"}, service); err != nil {
		c.t.Fatal(err)
	}
	balancer := &load.Balancer{Nodes: c.nodes, Port: uint16(service.Spec.Ports[0].NodePort)}
	generator := load.New(load.Config{
		Targets: func() []netip.AddrPort { return balancer.Targets(ctx) },
		Dial:    guests.Dial, Every: 200 * time.Millisecond, Timeout: 30 * time.Second,
	})
	balancer.Get = generator.Get
	go balancer.Run(ctx, time.Second)
	c.eventually(late, func(g gomega.Gomega) { g.Expect(balancer.Targets(ctx)).NotTo(gomega.BeEmpty()) })
	sending, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		generator.Run(sending)
	}()
	return func() load.Count {
		stop()
		<-ended
		cancel()
		return generator.Count()
	}
}

// nodes returns the nodes of Machines.
func (c *cluster) nodes(ctx context.Context) ([]corev1.Node, error) {
	list := &corev1.NodeList{}
	err := c.client.List(ctx, list, client.HasLabels{"example.org/pool"})
	return list.Items, err
}

// run runs a command of the program, which must succeed, and returns its output.
func (c *cluster) run(args ...string) string {
	c.t.Helper()
	text, status := program.Run(c.t, append(args, "--dir", c.dir)...)
	if status != 0 {
		c.t.Fatalf("%v: status %d\n%s", args, status, text)
	}
	return text
}

// wantAll fails the test if a request has failed, or if none succeeded.
func (c *cluster) wantAll(count load.Count) {
	c.t.Helper()
	c.t.Logf("requests: %s", count)
	if count.Failed > 0 || count.Succeeded == 0 {
		c.t.Error(fmt.Sprint(strings.Join(count.Failures, "\n")))
	}
}
