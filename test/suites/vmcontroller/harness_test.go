package vmcontroller

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/config"
	"github.com/millwright-dev/millwright/internal/local/controlplane"
	"github.com/millwright-dev/millwright/internal/local/hostrunner"
	"github.com/millwright-dev/millwright/internal/manager"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/program"
)

func TestMain(m *testing.M) {
	program.Main()
	env.Main(m)
}

// waitTimeout limits every wait for operations that take seconds on an idle machine. A lease that is not released
// expires after a quarter of it.
const waitTimeout = env.WaitTimeout

// installation is a set of VM controllers with a host. The test replaces the scheduler, and the proxy of the
// Service.
type installation struct {
	*env.Env
	t      *testing.T
	client client.Client
	rest   rest.Interface
	// user is the ServiceAccount of the manifests, in the namespace of the test.
	user       string
	kubeconfig string
	endpoint   string
	host, dir  string
	started    int
	// subresources is the port through which kube-apiserver reaches the leading controller.
	subresources int
	// vms is the namespace of the VMs, which cannot be that of the VM controllers.
	vms string
}

func newInstallation(t *testing.T) *installation {
	t.Helper()
	i := &installation{Env: env.New(t, env.WithOwn()), t: t} // a cluster has only one APIService of that name
	var err error
	i.client, err = client.New(i.Admin, client.Options{Scheme: manager.Scheme()})
	i.must(err)
	clients, err := kubernetes.NewForConfig(i.Admin)
	i.must(err)
	i.rest = clients.RESTClient()
	i.vms = i.Namespace + "-vms"
	i.must(i.client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: i.vms}}))
	i.must(i.client.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: i.vms, Name: "default"}}))
	i.user = fmt.Sprintf("system:serviceaccount:%s:millwright-vm-controller", i.Namespace)
	i.grant()
	i.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	i.must(i.ControlPlane.WriteKubeconfig(i.kubeconfig, i.user))
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: i.Namespace, Name: manager.VMLease}}
	i.subresources, err = i.ControlPlane.PortFor(i.Namespace, 0)
	i.must(err)
	service.Spec.Type, service.Spec.ExternalName = corev1.ServiceTypeExternalName, "localhost" // where kube-apiserver connects
	service.Spec.Ports = []corev1.ServicePort{{Name: "hypervisors", Port: 10270}, {Name: "subresources", Port: int32(i.subresources)}}
	i.must(i.client.Create(t.Context(), service))
	i.proxy()
	return i
}

// grant creates the roles and bindings of config/vm/base, which grant the user permissions for VirtualMachines in one
// namespace.
func (i *installation) grant() {
	i.t.Helper()
	root, err := env.Root()
	i.must(err)
	names := strings.NewReplacer("millwright-system", i.Namespace, "virtual-machines", i.vms)
	for _, file := range []string{"rbac/vm-controller-role.yaml", "rbac/vm-leader-role.yaml", "rbac/vm-subresources-role.yaml", "vm/base/bindings.yaml"} {
		text, err := os.ReadFile(filepath.Join(root, "config", file))
		i.must(err)
		i.must(controlplane.ApplyText(i.t.Context(), i.client, []byte(names.Replace(string(text))), i.Namespace))
	}
	for _, needed := range []authorizationv1.ResourceAttributes{
		{Namespace: i.vms, Verb: "list", Group: vmv1alpha1.SchemeGroupVersion.Group, Resource: "virtualmachines"},
		{Namespace: i.Namespace, Verb: "create", Group: "coordination.k8s.io", Resource: "leases"},
		{Namespace: i.Namespace, Verb: "create", Resource: "secrets"},
		{Verb: "create", Group: "authentication.k8s.io", Resource: "tokenreviews"},
		{Verb: "create", Group: "authorization.k8s.io", Resource: "subjectaccessreviews"},
		{Namespace: metav1.NamespaceSystem, Verb: "get", Resource: "configmaps", Name: "extension-apiserver-authentication"},
	} {
		i.eventually(func(g gomega.Gomega) {
			review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: i.user, ResourceAttributes: &needed}}
			g.Expect(i.client.Create(i.t.Context(), review)).To(gomega.Succeed())
			g.Expect(review.Status.Allowed).To(gomega.BeTrue(), "%+v", needed)
		})
	}
}

func (i *installation) must(err error) {
	i.t.Helper()
	if err != nil {
		i.t.Fatal(err)
	}
}

func (i *installation) eventually(check func(gomega.Gomega)) {
	i.t.Helper()
	gomega.NewWithT(i.t).Eventually(check).WithTimeout(waitTimeout).Should(gomega.Succeed())
}

// proxy forwards new connections to the endpoint of the Service, as kube-proxy does. An EndpointSlice cannot
// contain loopback addresses, so every address in it stands for this machine.
func (i *installation) proxy() {
	i.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	i.must(err)
	i.t.Cleanup(func() { _ = listener.Close() })
	i.endpoint = listener.Addr().String()
	go func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer from.Close()
				slice, err := i.slice()
				if err != nil {
					return
				}
				to, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(*slice.Ports[0].Port))))
				if err != nil {
					return
				}
				defer to.Close()
				go func() { _, _ = io.Copy(to, from); _ = to.Close() }()
				_, _ = io.Copy(from, to)
			}()
		}
	}()
}

// slice is the EndpointSlice of the Service.
func (i *installation) slice() (*discoveryv1.EndpointSlice, error) {
	slice := &discoveryv1.EndpointSlice{}
	return slice, i.client.Get(context.Background(), client.ObjectKey{Namespace: i.Namespace, Name: manager.VMLease}, slice)
}

// controller is one of the VM controllers.
type controller struct {
	*program.Process
	// address is the address of its Pod.
	address string
	pages   string
}

// start starts a VM controller with additional flags, and waits until it is ready.
func (i *installation) start(more ...string) *controller {
	i.t.Helper()
	i.started++
	port, err := i.ControlPlane.PortFor(fmt.Sprintf("%s-%d", i.Namespace, i.started), 0)
	i.must(err)
	c := &controller{address: fmt.Sprintf("192.0.2.%d", 10+i.started), pages: fmt.Sprintf("http://127.0.0.1:%d", port)}
	c.Process = program.Start(i.t, append([]string{"vm-controller", "--kubeconfig=" + i.kubeconfig, "--namespace=" + i.Namespace, "--vm-namespaces=" + i.vms,
		"--address=127.0.0.1", "--port=" + strconv.Itoa(port), "--listen=127.0.0.1:0", "--endpoint=" + i.endpoint, "--advertise-address=" + c.address,
		"--subresources-listen=127.0.0.1:" + strconv.Itoa(i.subresources),
		"--hypervisor-image=test", "--accelerator=tcg"}, more...)...)
	i.t.Cleanup(func() {
		c.Kill()
		if output := c.Output.String(); i.t.Failed() || strings.Contains(output, "forbidden") {
			i.t.Errorf("VM controller %s printed:\n%s", c.address, c.Output.Tail(50))
		}
	})
	i.eventually(func(g gomega.Gomega) {
		g.Expect(c.Done()).NotTo(gomega.BeClosed())
		g.Expect(i.page(c, "/readyz")).To(gomega.Equal("OK"))
	})
	return c
}

// page returns a page of a VM controller.
func (i *installation) page(c *controller, path string) string {
	request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, c.pages+path, nil)
	if err != nil {
		return err.Error()
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(response.Body)
	return string(body)
}

// leads waits until the Service leads to a VM controller.
func (i *installation) leads(c *controller) {
	i.t.Helper()
	i.eventually(func(g gomega.Gomega) {
		slice, err := i.slice()
		g.Expect(err).NotTo(gomega.HaveOccurred())
		g.Expect(slice.Endpoints).To(gomega.HaveLen(1))
		g.Expect(slice.Endpoints[0].Addresses).To(gomega.Equal([]string{c.address}))
	})
}

// startHost starts a host, which runs real hypervisors.
func (i *installation) startHost() {
	i.t.Helper()
	i.host, i.dir = "host-of-"+i.Namespace, i.t.TempDir()
	for _, manifests := range []string{"local/hosts.yaml"} {
		i.must(controlplane.Apply(i.t.Context(), i.Admin, config.Files, manifests, ""))
	}
	kubeconfig := filepath.Join(i.dir, "kubeconfig")
	i.must(i.ControlPlane.WriteKubeconfig(kubeconfig, "system:node:"+i.host, "system:nodes", hostrunner.Group))
	host := program.Start(i.t, "hostrunner", "--name", i.host, "--dir", i.dir, "--kubeconfig", kubeconfig)
	i.t.Cleanup(func() {
		host.Stop()
		if i.t.Failed() {
			i.t.Logf("the host printed:\n%s", host.Output.Tail(50))
		}
	})
	i.eventually(func(g gomega.Gomega) {
		g.Expect(i.client.Get(i.t.Context(), client.ObjectKey{Name: i.host}, &corev1.Node{})).To(gomega.Succeed())
	})
}

// run creates a VM without a disk's claim, and waits until its guest runs.
func (i *installation) run(name string, change ...func(*vmv1alpha1.VirtualMachineSpec)) *vmv1alpha1.VirtualMachine {
	i.t.Helper()
	vm := &vmv1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: i.vms, Name: name}}
	for _, change := range change {
		change(&vm.Spec)
	}
	i.must(i.client.Create(i.t.Context(), vm))
	i.runs(vm)
	return vm
}

// runs waits until the guest of a VM runs in its only Pod.
func (i *installation) runs(vm *vmv1alpha1.VirtualMachine) {
	i.t.Helper()
	i.eventually(func(g gomega.Gomega) {
		pods := &corev1.PodList{}
		g.Expect(i.client.List(i.t.Context(), pods, client.InNamespace(vm.Namespace), client.MatchingLabels{vmv1alpha1.LabelVM: vm.Name})).To(gomega.Succeed())
		g.Expect(pods.Items).To(gomega.HaveLen(1))
		pod := &pods.Items[0]
		if pod.Spec.NodeName == "" {
			to := &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: i.host}}
			g.Expect(i.client.SubResource("binding").Create(i.t.Context(), pod, to)).To(gomega.Succeed())
		}
		g.Expect(i.client.Get(i.t.Context(), client.ObjectKeyFromObject(vm), vm)).To(gomega.Succeed())
		g.Expect(vm.Status.Phase).To(gomega.Equal(vmv1alpha1.PhaseRunning), "%+v", vm.Status)
	})
}

// log returns the log of a VM's hypervisor.
func (i *installation) log(vm *vmv1alpha1.VirtualMachine) string {
	i.t.Helper()
	text, err := os.ReadFile(filepath.Join(i.dir, "pods", string(vm.Status.ActivePodUID), "log"))
	i.must(err)
	return string(text)
}

const (
	ended  = "the stream of run authorizations was closed"
	opened = "the stream of run authorizations is open again"
	// The same with expiring leases, for which each stream with a response counts.
	notRenewed = "cannot renew the lease; retrying"
	renewed    = "renewed the lease after failures"
)

// count returns how often a line occurs in a hypervisor's log.
func (i *installation) count(vm *vmv1alpha1.VirtualMachine, line string) int {
	i.t.Helper()
	return strings.Count(i.log(vm), line)
}

// last returns the last line of a hypervisor's log that contains a text.
func (i *installation) last(vm *vmv1alpha1.VirtualMachine, text string) string {
	i.t.Helper()
	last := ""
	for line := range strings.Lines(i.log(vm)) {
		if strings.Contains(line, text) {
			last = strings.TrimSpace(line)
		}
	}
	return last
}

// times returns the times of matching lines in a hypervisor's log.
func (i *installation) times(vm *vmv1alpha1.VirtualMachine, line string) []time.Time {
	i.t.Helper()
	var all []time.Time
	for text := range strings.Lines(i.log(vm)) {
		if !strings.Contains(text, line) {
			continue
		}
		stamp, _, _ := strings.Cut(strings.TrimPrefix(text, "time="), " ")
		at, err := time.Parse(time.RFC3339Nano, stamp)
		i.must(err)
		all = append(all, at)
	}
	return all
}
