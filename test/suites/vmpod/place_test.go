package vmpod

import (
	"context"
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

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
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
	// controllerAddress and imageServer are the addresses that Pods reach in addition to the API server.
	controllerAddress = "10.96.0.253:10270"
	imageServer       = "10.96.0.254:80"
)

// place is a cluster with a VM controller and a node. The VMs are in the namespace of env.
type place struct {
	*testing.T
	env        *env.Env
	client     client.Client
	node       *node.Node
	kubeconfig string
	// port is the port through which kube-apiserver reaches the VM controller.
	port int
}

func newPlace(t *testing.T) *place {
	t.Helper()
	node.Needs(t)
	p := &place{T: t, env: env.New(t, env.WithScheduler(), env.WithOwn())} // a cluster has only one APIService of that name
	var err error
	p.client, err = client.New(p.env.Admin, client.Options{Scheme: manager.Scheme()})
	p.must(err)
	p.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	p.must(p.env.ControlPlane.WriteKubeconfig(p.kubeconfig, "admin", "system:masters"))
	p.port, err = p.env.ControlPlane.PortFor(p.env.Namespace, 0)
	p.must(err)
	services := node.Services{
		controllerAddress: func(conn net.Conn) { p.toLeader(conn, "hypervisors") },
		imageServer:       p.serveImages(),
	}
	p.node = node.StartWith(t, p.env.ControlPlane, services, p.layout())
	p.serveSubresources()
	return p
}

func (p *place) must(err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
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

// serveImages serves the disk of a guest that echoes its console input.
func (p *place) serveImages() func(net.Conn) {
	p.Helper()
	root, err := env.Sources()
	p.must(err)
	server := httptest.NewServer(http.FileServer(http.Dir(filepath.Join(root, "internal", "vm", "hypervisor", "testdata"))))
	p.Cleanup(server.Close)
	return node.To(server.Listener.Addr().String())
}

// toLeader forwards a connection to a port of the leading VM controller, as kube-proxy does.
func (p *place) toLeader(conn net.Conn, port string) {
	slice := &discoveryv1.EndpointSlice{}
	err := p.client.Get(context.Background(), client.ObjectKey{Namespace: shipped, Name: manager.VMLease}, slice)
	if err != nil || len(slice.Endpoints) != 1 {
		return // there is no leader yet
	}
	for _, of := range slice.Ports {
		if *of.Name == port {
			p.node.Forward(conn, fmt.Sprintf("%s:%d", slice.Endpoints[0].Addresses[0], *of.Port))
		}
	}
}

// serveSubresources lets kube-apiserver, which is not in the node's network, reach the VM controller.
func (p *place) serveSubresources() {
	p.Helper()
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", p.port))
	p.must(err)
	p.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				p.toLeader(conn, "subresources")
			}()
		}
	}()
}

// overlay is a user's kustomization of config/vm. Since there is no kube-proxy and no DNS, hypervisors use an
// address, and kube-apiserver another port.
const overlay = `resources:
- %[1]s/base
images:
- {name: millwright, newName: %[2]s, newTag: %[3]s}
patches:
- target: {kind: Deployment}
  patch: |-
    - {op: replace, path: /spec/replicas, value: 1}
    - {op: replace, path: /spec/template/spec/containers/0/args/2, value: --hypervisor-image=%[2]s:%[3]s}
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --endpoint=%[4]s}
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --accelerator=tcg}
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --hypervisor-images=%[6]s}
- target: {kind: Service, name: millwright-vm-controller}
  patch: |-
    - {op: add, path: /spec/type, value: ExternalName}
    - {op: add, path: /spec/externalName, value: localhost}
    - {op: replace, path: /spec/ports/1/port, value: %[5]d}
- target: {kind: APIService}
  patch: |-
    - {op: replace, path: /spec/service/port, value: %[5]d}
`

// install applies the manifests, makes the node a host, and waits until the VM controller is ready.
func (p *place) install() {
	p.Helper()
	root, err := env.Sources()
	p.must(err)
	dir := p.TempDir()
	manifests, err := filepath.Rel(dir, filepath.Join(root, "config", "vm"))
	p.must(err)
	text := fmt.Sprintf(overlay, manifests, image, version, controllerAddress, p.port, noImage)
	p.must(os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600))
	rendered := strings.ReplaceAll(p.kubectl("", "kustomize", "--load-restrictor=LoadRestrictionsNone", dir), "virtual-machines", p.env.Namespace)
	p.kubectl(rendered, "apply", "--server-side", "--force-conflicts", "-f", "-")
	p.kubectl("", "label", "--overwrite", "namespace", p.env.Namespace, "pod-security.kubernetes.io/enforce=restricted")
	p.eventually(func(g gomega.Gomega) {
		g.Expect(p.node.Done()).NotTo(gomega.BeClosed())
		host := &corev1.Node{}
		g.Expect(p.client.Get(p.Context(), client.ObjectKey{Name: node.Name}, host)).To(gomega.Succeed())
		before := host.DeepCopy()
		metav1.SetMetaDataLabel(&host.ObjectMeta, vmv1alpha1.HostKey, "")
		g.Expect(p.client.Patch(p.Context(), host, client.MergeFrom(before))).To(gomega.Succeed())
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
