package release

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	certutil "k8s.io/client-go/util/cert"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/program"
)

// waitTimeout is how long the manager may take to start under load.
const waitTimeout = env.WaitTimeout

// manager is the installed manager.
type manager struct {
	t       *testing.T
	cluster *env.Cluster
	process *program.Process
	// namespace and pod come from the Deployment.
	namespace string
	pod       corev1.PodSpec
	// port is the port of its probes.
	port int
	// webhookPort is the port of its webhooks, and certificate their certificate; certificates is the directory
	// that contains it.
	webhookPort  int
	certificate  []byte
	certificates string
}

// installed returns the manager of the only Deployment, without starting it.
func installed(t *testing.T, c *env.Cluster) *manager {
	t.Helper()
	deployments := &appsv1.DeploymentList{}
	if err := c.Client.List(t.Context(), deployments); err != nil || len(deployments.Items) != 1 {
		t.Fatalf("%d Deployments, %v", len(deployments.Items), err)
	}
	deployment := deployments.Items[0]
	m := &manager{t: t, cluster: c, namespace: deployment.Namespace, pod: deployment.Spec.Template.Spec, certificates: t.TempDir()}
	m.certificate = writeCertificate(t, m.certificates)
	m.port, m.webhookPort = freePort(t, c, "manager"), freePort(t, c, "webhooks")
	return m
}

// startManager starts the manager as the Deployment specifies, with its service account, and waits until it
// leads.
func startManager(t *testing.T, c *env.Cluster) *manager {
	t.Helper()
	m := installed(t, c)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	m.writeKubeconfig(kubeconfig)
	// The API server and the certificate are elsewhere than in a Pod.
	args := m.args("inClusterConfig", kubeconfig)
	m.start(program.Command(context.Background(), append(args, "--webhook-cert-dir="+m.certificates)...))
	m.isReady()
	m.leads()
	return m
}

// args returns the Deployment's arguments with other ports, since all tests share one network. The last of two
// equal flags takes effect.
func (m *manager) args(replacements ...string) []string {
	inside := strings.NewReplacer(append(replacements, "$(POD_NAMESPACE)", m.namespace)...)
	var args []string
	for _, arg := range m.pod.Containers[0].Args {
		args = append(args, inside.Replace(arg))
	}
	return append(args, fmt.Sprintf("--port=%d", m.port), fmt.Sprintf("--webhook-port=%d", m.webhookPort))
}

// start starts the manager with the given command. It stops at the end of the test.
func (m *manager) start(command *exec.Cmd) {
	m.t.Helper()
	m.process = program.StartOther(m.t, command)
	m.t.Cleanup(func() {
		m.process.Kill()
		if m.t.Failed() {
			m.t.Logf("millwright %s printed:\n%s", strings.Join(command.Args[1:], " "), m.process.Output.Tail(50))
		}
	})
}

// leads waits until it is the leader.
func (m *manager) leads() {
	m.t.Helper()
	m.eventually(func(g gomega.Gomega) {
		g.Expect(m.process.Done()).NotTo(gomega.BeClosed())
		leases := &coordinationv1.LeaseList{}
		g.Expect(m.cluster.Client.List(m.t.Context(), leases, client.InNamespace(m.namespace))).To(gomega.Succeed())
		g.Expect(leases.Items).To(gomega.HaveLen(1))
		g.Expect(leases.Items[0].Spec.HolderIdentity).To(gomega.HaveValue(gomega.Not(gomega.BeEmpty())))
	})
}

// isReady waits until its probes respond as the kubelet expects.
func (m *manager) isReady() {
	m.t.Helper()
	container := m.pod.Containers[0]
	for _, probe := range []*corev1.Probe{container.ReadinessProbe, container.LivenessProbe} {
		url := fmt.Sprintf("http://127.0.0.1:%d%s", m.port, probe.HTTPGet.Path)
		m.eventually(func(g gomega.Gomega) {
			g.Expect(m.process.Done()).NotTo(gomega.BeClosed())
			request, err := http.NewRequestWithContext(m.t.Context(), http.MethodGet, url, nil)
			g.Expect(err).NotTo(gomega.HaveOccurred())
			response, err := http.DefaultClient.Do(request)
			g.Expect(err).NotTo(gomega.HaveOccurred())
			g.Expect(response.Body.Close()).To(gomega.Succeed())
			g.Expect(response.StatusCode).To(gomega.Equal(http.StatusOK), url)
		})
	}
}

// refusesChangesOfTemplates checks that the webhooks are served where they are registered.
func (m *manager) refusesChangesOfTemplates() {
	m.t.Helper()
	m.reachWebhooks()
	template := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": infrastructureGroup + "/v1alpha1", "kind": "MillwrightMachineTemplate",
		"metadata": map[string]any{"name": "pool", "namespace": m.cluster.Namespace},
		"spec":     map[string]any{"template": map[string]any{"spec": map[string]any{"driver": "sim", "providerSpec": map[string]any{}}}},
	}}
	if err := m.cluster.Client.Create(m.t.Context(), template); err != nil {
		m.t.Fatal(err)
	}
	m.eventually(func(g gomega.Gomega) {
		g.Expect(m.change(template, `{"metadata":{"labels":{"a":"b"}}}`)).To(gomega.Succeed())
		err := m.change(template, `{"spec":{"template":{"spec":{"providerSpec":{"size":"large"}}}}}`)
		g.Expect(apierrors.IsInvalid(err)).To(gomega.BeTrue(), "changed: %v", err)
	})
}

// makesMachines checks that the manager has all permissions that it needs to create a machine of a rendered
// template. The test performs the operations of the core.
func (m *manager) makesMachines(rendered []*unstructured.Unstructured) {
	m.t.Helper()
	for _, object := range rendered {
		if object.GetKind() == "MachineDeployment" {
			continue // no controller creates machines from it
		}
		if err := m.cluster.Client.Create(m.t.Context(), object); err != nil {
			m.t.Fatalf("creating %s: %v", object.GetKind(), err)
		}
	}
	cluster, ours := only(m.t, rendered, "Cluster"), only(m.t, rendered, "MillwrightCluster")
	ours.SetOwnerReferences([]metav1.OwnerReference{ownedBy(cluster)})
	if err := m.cluster.Client.Update(m.t.Context(), ours); err != nil {
		m.t.Fatal(err)
	}
	m.await(ours, "true", "status", "ready")
	// Each contract drops unknown fields.
	provisioned := client.RawPatch("application/merge-patch+json", []byte(`{"status":{"infrastructureReady":true,"initialization":{"infrastructureProvisioned":true}}}`))
	if err := m.cluster.Client.Status().Patch(m.t.Context(), cluster, provisioned); err != nil {
		m.t.Fatal(err)
	}

	machine := machineOf(only(m.t, rendered, "MachineDeployment"), "Machine")
	if err := unstructured.SetNestedField(machine.Object, "MillwrightMachine", "spec", "infrastructureRef", "kind"); err != nil {
		m.t.Fatal(err)
	}
	if err := m.cluster.Client.Create(m.t.Context(), machine); err != nil {
		m.t.Fatal(err)
	}
	vm := machineOf(only(m.t, rendered, "MillwrightMachineTemplate"), "MillwrightMachine")
	vm.SetLabels(map[string]string{"cluster.x-k8s.io/cluster-name": cluster.GetName()})
	vm.SetOwnerReferences([]metav1.OwnerReference{ownedBy(machine)})
	if err := m.cluster.Client.Create(m.t.Context(), vm); err != nil {
		m.t.Fatal(err)
	}
	m.await(vm, "true", "status", "ready")
	if err := m.cluster.Client.Delete(m.t.Context(), vm); err != nil {
		m.t.Fatal(err)
	}
	m.eventually(func(g gomega.Gomega) {
		err := m.cluster.Client.Get(m.t.Context(), client.ObjectKeyFromObject(vm), vm.DeepCopy())
		g.Expect(apierrors.IsNotFound(err)).To(gomega.BeTrue(), "still there: %v", err)
	})
}

// machineOf returns a machine with the name and the specification of a template.
func machineOf(template *unstructured.Unstructured, kind string) *unstructured.Unstructured {
	spec, _, _ := unstructured.NestedMap(template.Object, "spec", "template", "spec")
	machine := &unstructured.Unstructured{Object: map[string]any{"apiVersion": template.GetAPIVersion(), "kind": kind, "spec": spec}}
	machine.SetName(template.GetName())
	machine.SetNamespace(template.GetNamespace())
	return machine
}

func ownedBy(owner *unstructured.Unstructured) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: owner.GetAPIVersion(), Kind: owner.GetKind(), Name: owner.GetName(), UID: owner.GetUID()}
}

// await waits until a field of an object has a value.
func (m *manager) await(object *unstructured.Unstructured, value string, path ...string) {
	m.t.Helper()
	m.eventually(func(g gomega.Gomega) {
		now := object.DeepCopy()
		g.Expect(m.cluster.Client.Get(m.t.Context(), client.ObjectKeyFromObject(now), now)).To(gomega.Succeed())
		got, _, _ := unstructured.NestedFieldNoCopy(now.Object, path...)
		g.Expect(fmt.Sprint(got)).To(gomega.Equal(value), "%s has the status %v", now.GetKind(), now.Object["status"])
	})
}

func (m *manager) change(object client.Object, patch string) error {
	return m.cluster.Client.Patch(m.t.Context(), object.DeepCopyObject().(client.Object), client.RawPatch("application/merge-patch+json", []byte(patch)), client.DryRunAll)
}

// reachWebhooks does what a Service and cert-manager's injector do in a cluster.
func (m *manager) reachWebhooks() {
	m.t.Helper()
	list := &admissionv1.ValidatingWebhookConfigurationList{}
	if err := m.cluster.Client.List(m.t.Context(), list); err != nil || len(list.Items) != 1 {
		m.t.Fatalf("%d configurations of webhooks, %v", len(list.Items), err)
	}
	configuration := &list.Items[0]
	for i := range configuration.Webhooks {
		reached := &configuration.Webhooks[i].ClientConfig
		url := fmt.Sprintf("https://127.0.0.1:%d%s", m.webhookPort, *reached.Service.Path)
		reached.URL, reached.Service, reached.CABundle = &url, nil, m.certificate
	}
	if err := m.cluster.Client.Update(m.t.Context(), configuration); err != nil {
		m.t.Fatal(err)
	}
}

func (m *manager) eventually(check func(g gomega.Gomega)) {
	m.t.Helper()
	gomega.NewWithT(m.t).Eventually(check).WithTimeout(waitTimeout).WithPolling(100 * time.Millisecond).Should(gomega.Succeed())
}

// token returns a token of its service account.
func (m *manager) token() string {
	m.t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: m.pod.ServiceAccountName, Namespace: m.namespace}}
	request := &authenticationv1.TokenRequest{}
	if err := m.cluster.Client.SubResource("token").Create(m.t.Context(), account, request); err != nil {
		m.t.Fatal(err)
	}
	return request.Status.Token
}

// writeKubeconfig grants the file's user the permissions of its service account.
func (m *manager) writeKubeconfig(path string) {
	m.t.Helper()
	file := clientcmdapi.NewConfig()
	file.Clusters["test"] = &clientcmdapi.Cluster{Server: m.cluster.Admin.Host, CertificateAuthorityData: m.cluster.Admin.CAData}
	file.AuthInfos["test"] = &clientcmdapi.AuthInfo{Token: m.token()}
	file.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test"}
	file.CurrentContext = "test"
	if err := clientcmd.WriteToFile(*file, path); err != nil {
		m.t.Fatal(err)
	}
}

func writeCertificate(t *testing.T, dir string) []byte {
	t.Helper()
	certificate, key, err := certutil.GenerateSelfSignedCertKey("127.0.0.1", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"tls.crt": certificate, "tls.key": key} {
		// The mode of a Secret's files in a Pod.
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return certificate
}

// freePort returns a port outside the range of client connections.
func freePort(t *testing.T, c *env.Cluster, name string) int {
	t.Helper()
	port, err := c.ControlPlane.PortFor(name, 0)
	if err != nil {
		t.Fatal(err)
	}
	return port
}
