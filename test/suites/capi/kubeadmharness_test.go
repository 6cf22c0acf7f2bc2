package capi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/internal/local/controlplane"
	"github.com/millwright-dev/millwright/internal/local/egress"
	"github.com/millwright-dev/millwright/test/support/capicore"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/program"
)

// kubeadmProviders are Cluster API's providers for kubeadm, by the directories in which hack/capi.sh builds them.
var kubeadmProviders = []string{"bootstrap", "controlplane"}

// kubeadmSync is the resync period of these providers. They do not watch the machines of a control plane and
// their API server, and would otherwise check them only after 15 to 30 seconds.
const kubeadmSync = 3 * time.Second

// kubeadms contains the result of starting these providers for each control plane, which tests share.
var kubeadms struct {
	mu      sync.Mutex
	started map[*controlplane.ControlPlane]func() error
}

// requireKubeadm provides Cluster API's providers for kubeadm in addition to its core.
func requireKubeadm(t *testing.T, c *env.Cluster) {
	t.Helper()
	kubeadms.mu.Lock()
	start, ok := kubeadms.started[c.ControlPlane]
	if !ok {
		start = sync.OnceValue(func() error {
			for _, directory := range kubeadmProviders {
				if err := startProvider(context.WithoutCancel(t.Context()), c, directory); err != nil {
					return fmt.Errorf("starting the provider %s: %w", directory, err)
				}
			}
			return nil
		})
		if kubeadms.started == nil {
			kubeadms.started = map[*controlplane.ControlPlane]func() error{}
		}
		kubeadms.started[c.ControlPlane] = start
	}
	kubeadms.mu.Unlock()
	if err := start(); err != nil {
		t.Fatal(err)
	}
}

// startProvider starts a provider with its own kinds, roles and webhooks.
func startProvider(ctx context.Context, c *env.Cluster, directory string) error {
	crds, err := capicore.File(version, directory, "crd")
	if err != nil {
		return err
	}
	if err := controlplane.InstallCRDs(ctx, c.Admin, os.DirFS(crds)); err != nil {
		return err
	}
	user := "capi-" + directory
	if err := grantProvider(ctx, c, directory, user); err != nil {
		return err
	}
	dir := filepath.Join(c.ControlPlane.Dir(), user)
	certificate, err := capicore.WriteCertificate(dir)
	if err != nil {
		return err
	}
	webhooks, err := runProvider(ctx, c.ControlPlane, directory, user, dir)
	if err != nil {
		return err
	}
	if err := capicore.Convert(ctx, c.Client, crds, webhooks, certificate); err != nil {
		return err
	}
	manifest, err := capicore.File(version, directory, "webhook", "manifests.yaml")
	if err != nil {
		return err
	}
	return capicore.Register(ctx, c.Client, manifest, capicore.Registration{Name: user, Port: webhooks, CABundle: certificate})
}

// runProvider starts the program, and returns the port of its webhooks once it is ready.
func runProvider(ctx context.Context, plane *controlplane.ControlPlane, directory, user, dir string) (webhooks int, err error) {
	path, err := capicore.File(version, directory, "manager")
	if err != nil {
		return 0, err
	}
	if webhooks, err = plane.PortFor(user+"-webhooks", 0); err != nil {
		return 0, err
	}
	health, err := plane.PortFor(user+"-health", 0)
	if err != nil {
		return 0, err
	}
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := plane.WriteKubeconfig(kubeconfig, user); err != nil {
		return 0, err
	}
	err = plane.StartChild(ctx, controlplane.Child{
		Name: user, Path: path, Grace: 10 * time.Second,
		Args: []string{
			"--kubeconfig", kubeconfig, "--feature-gates", coreFeatures, "--webhook-port", fmt.Sprint(webhooks), "--webhook-cert-dir", dir,
			"--health-addr", fmt.Sprintf("127.0.0.1:%d", health), "--diagnostics-address", "0", "--insecure-diagnostics",
			"--sync-period", kubeadmSync.String(),
		},
	})
	if err != nil {
		return 0, err
	}
	return webhooks, capicore.AwaitReady(ctx, fmt.Sprintf("http://127.0.0.1:%d/readyz", health))
}

// grantProvider gives a provider its shipped roles under unique names, and with them those that other providers
// add by aggregation.
func grantProvider(ctx context.Context, c *env.Cluster, directory, user string) error {
	if err := grantRole(ctx, c, directory, "role.yaml", user, "manager-role"); err != nil {
		return err
	}
	if directory == "bootstrap" {
		return nil // not needed for infrastructure
	}
	if err := grantRole(ctx, c, directory, "aggregated_role.yaml", user, "aggregated-manager-role"); err != nil {
		return err
	}
	return awaitGrant(ctx, c.Client, user, kind("MillwrightMachine").Group, "millwrightmachines")
}

func grantRole(ctx context.Context, c *env.Cluster, directory, file, user, role string) error {
	path, err := capicore.File(version, directory, "rbac", file)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	own := bytes.ReplaceAll(text, []byte("  name: "+role+"\n"), []byte("  name: "+user+"-"+role+"\n"))
	if err := controlplane.ApplyText(ctx, c.Client, own, metav1.NamespaceSystem); err != nil {
		return err
	}
	return c.Client.Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: user + "-" + role},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: user + "-" + role},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}},
	})
}

// kubeadmHarness is a Cluster whose control plane machines are simulated. Their API server is that of the test's
// control plane, and the test performs the operations of kubeadm.
type kubeadmHarness struct {
	*harness
}

func newKubeadmHarness(t *testing.T) *kubeadmHarness {
	t.Helper()
	if version != newest {
		t.Skip("the kubeadm providers are built for the newest version only")
	}
	h := &kubeadmHarness{newEmptyHarness(t, env.New(t, env.WithControllerManager()).Cluster)}
	requireKubeadm(t, h.Cluster)
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		for _, directory := range kubeadmProviders {
			t.Logf("log of the provider %s about this test:\n%s", directory, logOf(h.Cluster, "capi-"+directory))
		}
	})
	return h
}

// declare creates the Cluster with the CAs of the control plane.
func (h *kubeadmHarness) declare() {
	h.t.Helper()
	for purpose, file := range map[string]string{"ca": "ca", "etcd": "etcd-ca", "apiserver-etcd-client": "apiserver-etcd-client"} {
		h.apply(contract+"/certificates.yaml", map[string]string{
			"PURPOSE": purpose, "CERTIFICATE": h.pem(file + ".crt"), "KEY": h.pem(file + ".key"),
		})
	}
	h.template("control-plane-1")
	etcd, _ := h.ControlPlane.Etcd()
	h.apply(contract+"/kubeadm.yaml", map[string]string{"ETCD": etcd, "PROVIDER": "Millwright"})
}

// template creates the template of control plane machines, and returns its name.
func (h *kubeadmHarness) template(name string) string {
	h.t.Helper()
	full := h.cluster + "-" + name
	h.apply(contract+"/control-plane-template.yaml", map[string]string{"TEMPLATE": full})
	return full
}

// pem returns a file of the control plane as a YAML string.
func (h *kubeadmHarness) pem(file string) string {
	h.t.Helper()
	text, err := os.ReadFile(filepath.Join(h.ControlPlane.Dir(), "pki", file))
	if err != nil {
		h.t.Fatal(err)
	}
	quoted, err := json.Marshal(string(text))
	if err != nil {
		h.t.Fatal(err)
	}
	return string(quoted)
}

// managerOfVMs starts a manager whose driver creates VirtualMachines, which no hypervisor runs.
func (h *kubeadmHarness) managerOfVMs() {
	h.t.Helper()
	kubeconfig := h.path("vms.kubeconfig")
	env.WriteKubeconfig(h.t, kubeconfig, h.UserWith(h.t, "config/rbac/capi-role.yaml", "config/rbac/driver-vm-role.yaml"))
	p := program.Start(h.t, "manager", "--apis", "capi", "--driver", "vm", "--installation", h.Namespace, "--namespace", h.Namespace,
		"--control-kubeconfig", kubeconfig, "--target-kubeconfig", "none", "--port", "0")
	h.t.Cleanup(func() {
		p.Kill()
		if h.t.Failed() {
			h.t.Logf("the manager printed:\n%s", p.Output.Tail(50))
		}
	})
}

// balancer starts the load balancer, which reaches the API server at the address of each control plane machine
// that has a VM.
func (h *kubeadmHarness) balancer() *program.Process {
	h.t.Helper()
	dir, err := os.MkdirTemp("", "lb") // paths of sockets must be short
	if err != nil {
		h.t.Fatal(err)
	}
	socket := filepath.Join(dir, "egress.sock")
	listener, err := (&net.ListenConfig{}).Listen(h.t.Context(), "unix", socket)
	if err != nil {
		h.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(h.t.Context()))
	var served sync.WaitGroup
	served.Go(func() {
		if err := egress.Serve(ctx, listener, h.dial); err != nil {
			h.t.Error(err)
		}
	})
	kubeconfig := h.path("balancer.kubeconfig")
	env.WriteKubeconfig(h.t, kubeconfig, h.UserWith(h.t, "config/rbac/load-balancer-role.yaml"))
	first := 20000 + rand.IntN(12000)
	p := program.Start(h.t, "load-balancer", "--kubeconfig", kubeconfig, "--namespace", h.Namespace, "--address", "127.0.0.1",
		"--ports", fmt.Sprintf("%d-%d", first, first+99), "--via", socket)
	h.t.Cleanup(func() {
		p.Kill()
		cancel()
		served.Wait()
		if err := os.RemoveAll(dir); err != nil {
			h.t.Error(err)
		}
		if h.t.Failed() {
			h.t.Logf("the load balancer printed:\n%s", p.Output.Tail(50))
		}
	})
	return p
}

var errNoSuchHost = errors.New("no VM has the address")

// dial connects to the API server of a simulated machine.
func (h *kubeadmHarness) dial(ctx context.Context, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	machines := &unstructured.UnstructuredList{}
	machines.SetGroupVersionKind(kind("MillwrightMachineList"))
	if err := h.Client.List(ctx, machines, client.InNamespace(h.Namespace)); err != nil {
		return nil, err
	}
	vms, err := h.cloud.VMs()
	if err != nil {
		return nil, err
	}
	for _, machine := range machines.Items {
		runs := slices.ContainsFunc(vms, func(vm sim.VM) bool { return vm.Machine == machine.GetName() && vm.GoneAt.IsZero() })
		if runs && port == "6443" && addressOf(&machine, "InternalIP") == host {
			return (&net.Dialer{}).DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", h.ControlPlane.Port()))
		}
	}
	return nil, errNoSuchHost
}

// playKubeadm does for the nodes of the control plane what kubeadm and the kubelet do on a machine: it adds the
// node's taint, the mirror Pods of static Pods, and the ConfigMap with the cluster's configuration.
func (h *kubeadmHarness) playKubeadm(g gomega.Gomega) {
	nodes := &corev1.NodeList{}
	g.Expect(h.Client.List(h.t.Context(), nodes, client.HasLabels{"node-role.kubernetes.io/control-plane"})).To(gomega.Succeed())
	for _, node := range nodes.Items {
		if strings.HasPrefix(node.Name, h.cluster) && node.DeletionTimestamp.IsZero() {
			h.taint(g, &node)
			for _, component := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
				h.mirror(g, component, node.Name)
			}
			h.ensure(g, &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "kubeadm-config"},
				Data:       map[string]string{"ClusterConfiguration": "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nkubernetesVersion: v1.37.2\n"},
			})
		}
	}
}

func (h *kubeadmHarness) taint(g gomega.Gomega, node *corev1.Node) {
	taint := corev1.Taint{Key: "node-role.kubernetes.io/control-plane", Effect: corev1.TaintEffectNoSchedule}
	if !slices.Contains(node.Spec.Taints, taint) {
		node.Spec.Taints = append(node.Spec.Taints, taint)
		g.Expect(h.Client.Update(h.t.Context(), node)).To(gomega.Succeed())
	}
}

func (h *kubeadmHarness) ensure(g gomega.Gomega, object client.Object) {
	if err := h.Client.Create(h.t.Context(), object); !apierrors.IsAlreadyExists(err) {
		g.Expect(err).NotTo(gomega.HaveOccurred())
	}
}

func (h *kubeadmHarness) mirror(g gomega.Gomega, component, node string) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceSystem, Name: component + "-" + node, Labels: map[string]string{"component": component, "tier": "control-plane"},
			Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "of-a-file"},
		},
		Spec: corev1.PodSpec{
			NodeName: node, Containers: []corev1.Container{{Name: component, Image: "registry.k8s.io/" + component + ":v1.37.2"}},
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		},
	}
	h.ensure(g, pod)
	g.Expect(h.Client.Get(h.t.Context(), client.ObjectKeyFromObject(pod), pod)).To(gomega.Succeed())
	if pod.Status.Phase == corev1.PodRunning {
		return
	}
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	g.Expect(h.Client.Status().Update(h.t.Context(), pod)).To(gomega.Succeed())
}
