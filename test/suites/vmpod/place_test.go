package vmpod

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/subresources"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/local/egress"
	"github.com/millwright-dev/millwright/internal/manager"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/node"
	"github.com/millwright-dev/millwright/test/support/program"
)

func TestMain(m *testing.M) {
	node.Main()
	program.Main()
	env.Main(m)
}

const (
	// image contains the program and QEMU. The VM controller runs from it too, so that only one image is
	// imported.
	image   = "registry.example.com/millwright-hypervisor"
	version = "v0.1.0"
	// shipped is the namespace of the VM controller in the manifests. VMs are in another one.
	shipped = "millwright-system"
	// controllerIP is the address of the Service of the VM controller, because there is no DNS.
	controllerIP = "10.96.0.253"
	// imageServer is outside the cluster.
	imageServer = "10.200.254.1:80"
)

// place is a cluster with a VM controller and nodes, which are hosts. The VMs are in the namespace of env.
type place struct {
	*testing.T
	env     *env.Env
	client  client.Client
	network *node.Network
	nodes   []*node.Node
	// node is the first one, which is never disconnected.
	node       *node.Node
	kubeconfig string
	// images is the directory of imageServer.
	images string
}

// newPlace creates a cluster with nodes of these names. Hypervisors download images from a directory.
func newPlace(t *testing.T, images string, names ...string) *place {
	t.Helper()
	node.Needs(t)
	dir, err := os.MkdirTemp("", "vmpod-") // paths of sockets must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // only a socket
	egress := filepath.Join(dir, "egress.sock")
	p := &place{T: t, images: images, env: env.New(t, env.WithScheduler(), env.WithNodes(node.RouterIP, egress))}
	p.client, err = client.New(p.env.Admin, client.Options{Scheme: manager.Scheme()})
	p.must(err)
	p.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	p.must(p.env.ControlPlane.WriteKubeconfig(p.kubeconfig, "admin", "system:masters"))
	p.network = node.NewNetwork(t, p.env.ControlPlane, node.Config{Services: node.Services{imageServer: p.serveImages(images)}, KubeProxy: true})
	layout := p.layout()
	for _, name := range names {
		p.nodes = append(p.nodes, p.network.Start(name, layout))
	}
	p.node = p.nodes[0]
	p.serveEgress(egress)
	t.Cleanup(p.describe)
	return p
}

func (p *place) must(err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
}

// describe logs the state of all Pods, and the output of the hypervisors, if the test failed.
func (p *place) describe() {
	if !p.Failed() {
		return
	}
	pods, vms := &corev1.PodList{}, &vmv1alpha1.VirtualMachineList{}
	ctx := context.WithoutCancel(p.Context())
	if err := errors.Join(p.client.List(ctx, pods), p.client.List(ctx, vms)); err != nil {
		p.Log(err)
	}
	for _, vm := range vms.Items {
		p.Logf("VM %s: %+v", vm.Name, vm.Status)
		p.logConsole(ctx, &vm)
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		p.Logf("pod %s on %s: %s %v, labels %v", pod.Name, pod.Spec.NodeName, pod.Status.Phase, pod.Status.Conditions, pod.Labels)
		for _, container := range pod.Status.ContainerStatuses {
			p.Logf("container %s: %d restarts, %v, before %v", container.Name, container.RestartCount, &container.State, &container.LastTerminationState)
		}
		for _, n := range p.nodes {
			if n.Name == pod.Spec.NodeName {
				p.Logf("%s", n.LogTail(pod.Namespace, pod.Name, string(pod.UID)))
			}
		}
	}
}

// logConsole logs the last output of a VM's console.
func (p *place) logConsole(ctx context.Context, vm *vmv1alpha1.VirtualMachine) {
	binaries, err := env.Binaries()
	if err != nil {
		p.Log(err)
		return
	}
	path := fmt.Sprintf("/apis/%s/%s/namespaces/%s/%s/%s/log", subresources.Group, subresources.Version, vm.Namespace, subresources.Resource, vm.Name)
	out, err := exec.CommandContext(ctx, filepath.Join(binaries, "kubectl"), "get", "--raw", path, "--kubeconfig="+p.kubeconfig).CombinedOutput()
	p.Logf("console of VM %s: %s %v", vm.Name, out, err)
}

// layout builds the image.
func (p *place) layout() string {
	p.Helper()
	root, err := env.Sources()
	p.must(err)
	layout := filepath.Join(p.TempDir(), "image")
	command := exec.CommandContext(p.Context(), filepath.Join(root, "hack", "image.sh"), "--hypervisor", layout, version, image)
	if out, err := command.CombinedOutput(); err != nil {
		p.Fatalf("hack/image.sh --hypervisor: %v\n%s", err, out)
	}
	return layout
}

// serveImages serves a directory.
func (p *place) serveImages(directory string) func(net.Conn) {
	p.Helper()
	server := httptest.NewServer(http.FileServer(http.Dir(directory)))
	p.Cleanup(server.Close)
	return node.To(server.Listener.Addr().String())
}

// serveEgress lets kube-apiserver, which is not in the network of the nodes, connect as the first node does.
func (p *place) serveEgress(socket string) {
	p.Helper()
	listener, err := (&net.ListenConfig{}).Listen(p.Context(), "unix", socket)
	p.must(err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(p.Context()))
	served := make(chan error, 1)
	go func() { served <- egress.Serve(ctx, listener, p.node.Dial) }()
	p.Cleanup(func() {
		cancel()
		p.must(<-served)
	})
}

// overlay is a user's kustomization of config/vm. Since there is no DNS, hypervisors use the address of the Service.
const overlay = `resources:
- %[1]s/base
images:
- {name: millwright, newName: %[2]s, newTag: %[3]s}
patches:
- target: {kind: Deployment}
  patch: |-
    - {op: replace, path: /spec/replicas, value: 1}
    - {op: add, path: /spec/template/spec/nodeSelector, value: {kubernetes.io/hostname: %[6]s}}
    - {op: replace, path: /spec/template/spec/containers/0/args/2, value: --hypervisor-image=%[2]s:%[3]s}
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: '--endpoint=%[4]s:10270'}
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --accelerator=tcg}
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --hypervisor-images=%[5]s}
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --vm-host-shutdown-grace-period=10m}
- target: {kind: Service, name: millwright-vm-controller}
  patch: |-
    - {op: add, path: /spec/clusterIP, value: %[4]s}
`

// install applies the manifests, makes the nodes hosts, and waits until the VM controller is ready.
func (p *place) install() {
	p.Helper()
	root, err := env.Sources()
	p.must(err)
	dir := p.TempDir()
	manifests, err := filepath.Rel(dir, filepath.Join(root, "config", "vm"))
	p.must(err)
	text := fmt.Sprintf(overlay, manifests, image, version, controllerIP, noImage, p.node.Name)
	p.must(os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600))
	rendered := strings.ReplaceAll(p.kubectl("", "kustomize", "--load-restrictor=LoadRestrictionsNone", dir), "virtual-machines", p.env.Namespace)
	p.kubectl(rendered, "apply", "--server-side", "--force-conflicts", "-f", "-")
	p.kubectl("", "label", "--overwrite", "namespace", p.env.Namespace, "pod-security.kubernetes.io/enforce=restricted")
	for _, n := range p.nodes {
		p.eventually(func(g gomega.Gomega) {
			g.Expect(n.Done()).NotTo(gomega.BeClosed())
			host := &corev1.Node{}
			g.Expect(p.client.Get(p.Context(), client.ObjectKey{Name: n.Name}, host)).To(gomega.Succeed())
			before := host.DeepCopy()
			metav1.SetMetaDataLabel(&host.ObjectMeta, vmv1alpha1.HostKey, "")
			g.Expect(p.client.Patch(p.Context(), host, client.MergeFrom(before))).To(gomega.Succeed())
		})
	}
	p.eventually(func(g gomega.Gomega) {
		slice := &discoveryv1.EndpointSlice{}
		g.Expect(p.client.Get(p.Context(), client.ObjectKey{Namespace: shipped, Name: manager.VMLease}, slice)).To(gomega.Succeed())
		g.Expect(slice.Endpoints).To(gomega.HaveLen(1))
	})
}

// kubectl runs kubectl as an administrator, and returns its output.
func (p *place) kubectl(stdin string, args ...string) string {
	p.Helper()
	binaries, err := env.Binaries()
	p.must(err)
	var complaints strings.Builder
	command := exec.CommandContext(p.Context(), filepath.Join(binaries, "kubectl"), append(args, "--kubeconfig="+p.kubeconfig)...)
	command.Stdin, command.Stderr = strings.NewReader(stdin), &complaints
	out, err := command.Output()
	if err != nil {
		p.Fatalf("kubectl %v: %v\n%s", args, err, &complaints)
	}
	return string(out)
}

func (p *place) eventually(check func(g gomega.Gomega)) {
	p.Helper()
	gomega.NewWithT(p.T).Eventually(check).WithTimeout(env.WaitTimeout).WithPolling(50 * time.Millisecond).Should(gomega.Succeed())
}
