package release

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/internal/local/controlplane"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/fixture"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestClusterctl_InstallsProvider runs clusterctl init, which checks the contract and the names of the CRDs. It
// then runs the installed manager as the Deployment specifies, with exactly the installed permissions.
func TestClusterctl_InstallsProvider(t *testing.T) {
	tier.All(t)
	p := newPlace(t)
	e := env.New(t, env.WithOwn())
	if err := controlplane.InstallCRDs(t.Context(), e.Admin, os.DirFS("testdata/cert-manager")); err != nil {
		t.Fatal(err)
	}
	p.init(e.Cluster, contract())
	checkClusterDefinition(t, e.Cluster, contract())
	m := startManager(t, e.Cluster)
	m.refusesChangesOfTemplates()

	// The provider is now known, so commands need not name it.
	rendered := p.clusterctl(contract(), nil, "generate", "cluster", "c1", "--flavor", "sim", "--target-namespace", e.Namespace,
		"--kubernetes-version", "v1.37.2", "--worker-machine-count", "1", "--kubeconfig", e.ControlPlane.Kubeconfig())
	m.makesMachines(fixture.Objects(t, rendered))
	m.process.Stop()
}

// TestClusterctl_UpgradesFromOlderContract upgrades the core first, which is the only supported order, and then the
// provider, from the other repository.
func TestClusterctl_UpgradesFromOlderContract(t *testing.T) {
	tier.All(t)
	if len(contracts) == 1 {
		t.Skipf("Cluster API %s reads one contract only", version)
	}
	p := newPlace(t)
	e := env.New(t, env.WithOwn())
	if err := controlplane.InstallCRDs(t.Context(), e.Admin, os.DirFS("testdata/cert-manager")); err != nil {
		t.Fatal(err)
	}
	p.init(e.Cluster, "v1beta1")
	checkClusterDefinition(t, e.Cluster, "v1beta1")
	if out, err := p.release("v0.1.1", image); err != nil {
		t.Fatalf("hack/clusterctl.sh: %v\n%s", err, out)
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

// init installs the core and the provider.
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

// withCore writes a configuration with the provider and a core of the version under test. The core consists of
// its kinds without its manager, which no kubelet would run here. It returns the configuration's path.
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
			continue // clusterctl has its own
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

// checkClusterDefinition checks that the CRD of the contract has replaced the previous one.
func checkClusterDefinition(t *testing.T, c *env.Cluster, contract string) {
	t.Helper()
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	if err := c.Client.Get(t.Context(), client.ObjectKey{Name: "millwrightclusters." + infrastructureGroup}, object); err != nil {
		t.Fatal(err)
	}
	crd := decode[apiextensionsv1.CustomResourceDefinition](t, object)
	if domains := failureDomainsOf(crd); domains.Type != map[string]string{"v1beta1": "object", "v1beta2": "array"}[contract] {
		t.Errorf("contract %s: status.failureDomains of a MillwrightCluster is of type %q", contract, domains.Type)
	}
	if _, ok := crd.Labels["clusterctl.cluster.x-k8s.io"]; !ok {
		t.Errorf("clusterctl did not install the definition: labels %v", crd.Labels)
	}
}
