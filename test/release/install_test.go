package release

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	certutil "k8s.io/client-go/util/cert"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/internal/local"
	"github.com/millwright-dev/millwright/test/env"
	"github.com/millwright-dev/millwright/test/program"
)

// patience is how long the manager may take to start, under load.
const patience = time.Minute

// TestClusterctlInstallsTheProvider: clusterctl init, with the check of the contract, and
// of the names of the CRDs. What it installs is then run as the Deployment says, with the
// rights that were installed, and nothing else.
func TestClusterctlInstallsTheProvider(t *testing.T) {
	p := newPlace(t)
	e := env.New(t, env.WithOwn())
	if err := local.InstallCRDs(t.Context(), e.Admin, os.DirFS("testdata/cert-manager")); err != nil {
		t.Fatal(err)
	}
	p.init(e.Cluster, contract())
	checkClusterDefinition(t, e.Cluster, contract())
	m := startManager(t, e.Cluster)
	m.refusesChangesOfTemplates()

	// Now that it is known which provider there is, nobody has to say so.
	cluster := p.clusterctl(contract(), nil, "generate", "cluster", "c1", "--flavor", "sim", "--target-namespace", e.Namespace,
		"--kubernetes-version", "v1.36.3", "--worker-machine-count", "1", "--kubeconfig", e.ControlPlane.Kubeconfig())
	if len(objects(t, cluster)) == 0 {
		t.Error("clusterctl made no cluster of the template")
	}
	m.process.Stop()
}

// TestUpgradeFromTheOlderContract: the core is upgraded first, as nothing else is possible;
// then the provider is, from the other repository.
func TestUpgradeFromTheOlderContract(t *testing.T) {
	if len(contracts) == 1 {
		t.Skipf("Cluster API %s reads one contract only", version)
	}
	p := newPlace(t)
	e := env.New(t, env.WithOwn())
	if err := local.InstallCRDs(t.Context(), e.Admin, os.DirFS("testdata/cert-manager")); err != nil {
		t.Fatal(err)
	}
	p.init(e.Cluster, "v1beta1")
	checkClusterDefinition(t, e.Cluster, "v1beta1")
	if out, err := p.release("v0.1.1", image); err != nil {
		t.Fatalf("hack/release.sh: %v\n%s", err, out)
	}
	_, stderr, err := p.tryClusterctl(p.withCore("v1beta2"), nil, "upgrade", "apply", "--infrastructure", "millwright:v0.1.1", "--kubeconfig", e.ControlPlane.Kubeconfig())
	if err != nil {
		t.Fatalf("clusterctl upgrade: %v\n%s", err, stderr)
	}
	checkClusterDefinition(t, e.Cluster, "v1beta2")
	deployment := &appsv1.Deployment{}
	if err := e.Client.Get(t.Context(), client.ObjectKey{Namespace: "millwright-system", Name: "millwright-capi"}, deployment); err != nil {
		t.Fatal(err)
	}
	if got := deployment.Spec.Template.Spec.Containers[0].Image; got != image+":v0.1.1" {
		t.Errorf("the manager's image is %s", got)
	}
}

// init installs core and provider.
func (p *place) init(c *env.Cluster, contract string) {
	p.t.Helper()
	_, stderr, err := p.tryClusterctl(p.withCore(contract), []string{"MILLWRIGHT_DRIVER=sim"},
		"init", "--core", "cluster-api:"+version, "--bootstrap", "-", "--control-plane", "-",
		"--infrastructure", "millwright:"+release, "--kubeconfig", c.ControlPlane.Kubeconfig())
	if err != nil {
		p.t.Fatalf("clusterctl init: %v\n%s", err, stderr)
	}
	if strings.Contains(strings.ToLower(string(stderr)), "warning") {
		p.t.Errorf("clusterctl warns:\n%s", stderr)
	}
}

// withCore writes a configuration that has a core of the version under test beside the
// provider: its kinds without its manager, which no kubelet would run here anyway. It returns
// the configuration's path.
func (p *place) withCore(contract string) string {
	p.t.Helper()
	dir := filepath.Join(p.dir, "core", "cluster-api", version)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		p.t.Fatal(err)
	}
	components := []byte("apiVersion: v1\nkind: Namespace\nmetadata:\n  name: capi-system\n")
	crds, err := filepath.Glob(filepath.Join(coreFile(p.t, "crd"), "*cluster.x-k8s.io_*.yaml"))
	if err != nil {
		p.t.Fatal(err)
	}
	for _, path := range crds {
		if strings.HasPrefix(filepath.Base(path), "clusterctl.") {
			continue // clusterctl brings its own
		}
		text, err := os.ReadFile(path)
		if err != nil {
			p.t.Fatal(err)
		}
		components = slices.Concat(components, []byte("---\n"), text)
	}
	metadata, err := os.ReadFile(filepath.Join(moduleDir(p.t), "metadata.yaml"))
	if err != nil {
		p.t.Fatal(err)
	}
	written, err := os.ReadFile(filepath.Join(p.dir, contract, "clusterctl.yaml"))
	if err != nil {
		p.t.Fatal(err)
	}
	config := filepath.Join(p.dir, "with-core.yaml")
	core := fmt.Sprintf("- name: cluster-api\n  type: CoreProvider\n  url: file://%s/core-components.yaml\n", dir)
	for path, content := range map[string][]byte{
		filepath.Join(dir, "core-components.yaml"): components,
		filepath.Join(dir, "metadata.yaml"):        metadata,
		config:                                     append(written, core...),
	} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			p.t.Fatal(err)
		}
	}
	return config
}

// checkClusterDefinition checks that the definition of the contract has taken the place of
// that which was there before.
func checkClusterDefinition(t *testing.T, c *env.Cluster, contract string) {
	t.Helper()
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	if err := c.Client.Get(t.Context(), client.ObjectKey{Name: "millwrightclusters." + infrastructureGroup}, object); err != nil {
		t.Fatal(err)
	}
	crd := decode[apiextensionsv1.CustomResourceDefinition](t, object)
	_, domains := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["status"].Properties["failureDomains"]
	if domains != (contract == "v1beta2") {
		t.Errorf("contract %s: status.failureDomains of a MillwrightCluster is there: %v", contract, domains)
	}
	if _, ok := crd.Labels["clusterctl.cluster.x-k8s.io"]; !ok {
		t.Errorf("clusterctl did not install the definition: labels %v", crd.Labels)
	}
}

// manager is the one that was installed.
type manager struct {
	t       *testing.T
	cluster *env.Cluster
	process *program.Process
	// port and certificate are those of its webhooks.
	port        int
	certificate []byte
}

// startManager starts what the Deployment says, as the service account, and waits until it
// leads.
func startManager(t *testing.T, c *env.Cluster) *manager {
	t.Helper()
	deployments := &appsv1.DeploymentList{}
	if err := c.Client.List(t.Context(), deployments); err != nil || len(deployments.Items) != 1 {
		t.Fatalf("%d Deployments, %v", len(deployments.Items), err)
	}
	deployment := deployments.Items[0]
	m := &manager{t: t, cluster: c}
	dir := t.TempDir()
	m.certificate = writeCertificate(t, dir)
	m.port = freePort(t)
	kubeconfig := filepath.Join(dir, "kubeconfig")
	actAs(t, c, deployment.Namespace, deployment.Spec.Template.Spec.ServiceAccountName, kubeconfig)

	// What is different outside of a Pod: how the API server is reached, ports, and where
	// the certificate is. The first of two equal flags does not count.
	inside := strings.NewReplacer("$(POD_NAMESPACE)", deployment.Namespace, "inClusterConfig", kubeconfig)
	var args []string
	for _, arg := range deployment.Spec.Template.Spec.Containers[0].Args {
		args = append(args, inside.Replace(arg))
	}
	args = append(args, "--port=0", fmt.Sprintf("--webhook-port=%d", m.port), "--webhook-cert-dir="+dir)
	m.process = program.Start(t, args...)
	t.Cleanup(func() {
		m.process.Kill()
		if t.Failed() {
			t.Logf("millwright %s printed:\n%s", strings.Join(args, " "), m.process.Output.Tail(50))
		}
	})
	m.eventually(func(g gomega.Gomega) {
		g.Expect(m.process.Done()).NotTo(gomega.BeClosed())
		leases := &coordinationv1.LeaseList{}
		g.Expect(c.Client.List(t.Context(), leases, client.InNamespace(deployment.Namespace))).To(gomega.Succeed())
		g.Expect(leases.Items).To(gomega.HaveLen(1))
		g.Expect(leases.Items[0].Spec.HolderIdentity).NotTo(gomega.BeNil())
	})
	return m
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

func (m *manager) change(object client.Object, patch string) error {
	return m.cluster.Client.Patch(m.t.Context(), object.DeepCopyObject().(client.Object), client.RawPatch("application/merge-patch+json", []byte(patch)), client.DryRunAll)
}

// reachWebhooks does what a Service, and cert-manager's injector, do where there are any.
func (m *manager) reachWebhooks() {
	m.t.Helper()
	list := &admissionv1.ValidatingWebhookConfigurationList{}
	if err := m.cluster.Client.List(m.t.Context(), list); err != nil || len(list.Items) != 1 {
		m.t.Fatalf("%d configurations of webhooks, %v", len(list.Items), err)
	}
	configuration := &list.Items[0]
	for i := range configuration.Webhooks {
		reached := &configuration.Webhooks[i].ClientConfig
		url := fmt.Sprintf("https://127.0.0.1:%d%s", m.port, *reached.Service.Path)
		reached.URL, reached.Service, reached.CABundle = &url, nil, m.certificate
	}
	if err := m.cluster.Client.Update(m.t.Context(), configuration); err != nil {
		m.t.Fatal(err)
	}
}

func (m *manager) eventually(check func(g gomega.Gomega)) {
	m.t.Helper()
	gomega.NewWithT(m.t).Eventually(check).WithTimeout(patience).WithPolling(100 * time.Millisecond).Should(gomega.Succeed())
}

// actAs writes a kubeconfig for a service account.
func actAs(t *testing.T, c *env.Cluster, namespace, name, path string) {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}}
	token := &authenticationv1.TokenRequest{}
	if err := c.Client.SubResource("token").Create(t.Context(), account, token); err != nil {
		t.Fatal(err)
	}
	file := clientcmdapi.NewConfig()
	file.Clusters["test"] = &clientcmdapi.Cluster{Server: c.Admin.Host, CertificateAuthorityData: c.Admin.CAData}
	file.AuthInfos["test"] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	file.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test"}
	file.CurrentContext = "test"
	if err := clientcmd.WriteToFile(*file, path); err != nil {
		t.Fatal(err)
	}
}

func writeCertificate(t *testing.T, dir string) []byte {
	t.Helper()
	certificate, key, err := certutil.GenerateSelfSignedCertKey("127.0.0.1", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"tls.crt": certificate, "tls.key": key} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certificate
}

func freePort(t *testing.T) int {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close() //nolint:errcheck // nothing was written
	return listener.Addr().(*net.TCPAddr).Port
}
