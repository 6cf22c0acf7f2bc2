package chart

import (
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/internal/local/controlplane"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestChart_InstalledFleetServesNamespace runs the fleet as the chart's Deployment specifies, with the token of its
// ServiceAccount and thus the installed permissions. Machines of a namespace are created and deleted. The Pod conforms to
// the Pod Security level "restricted".
func TestChart_InstalledFleetServesNamespace(t *testing.T) {
	tier.All(t)
	t.Parallel()
	i := newFleet(t)
	for _, deployment := range apply(t, i.Cluster, i.fleet(values{"driver": "sim"})) {
		spec := deployment.Spec.Template.Spec
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: i.Namespace, GenerateName: "pod-"}, Spec: spec}
		must(t, i.Client.Create(t.Context(), pod, client.DryRunAll))
		access := i.kubeconfig(spec.ServiceAccountName)
		i.start(deployment.Name, spec.Containers[0], access)
	}
	i.makesMachines()
}

// TestChart_DriverSidecarServesFleet checks that a driver in a container next to the fleet's creates the VM of a Machine.
func TestChart_DriverSidecarServesFleet(t *testing.T) {
	tier.All(t)
	t.Parallel()
	i := newFleet(t)
	of := plugins()["driver-sidecar"]
	of["driver"] = ""
	for _, deployment := range apply(t, i.Cluster, i.fleet(of)) {
		i.startSidecar(deployment)
	}
	i.createPool()
	i.hasVM()
}

// newFleet returns an API server with the CRDs, whose namespace has the label and the Secret of a target.
func newFleet(t *testing.T) *installation {
	t.Helper()
	i := &installation{Env: env.New(t), t: t}
	must(t, controlplane.InstallCRDs(t.Context(), i.Admin, os.DirFS("testdata/crds")))
	target := env.New(t, env.WithNumber(1)).Cluster
	own := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: i.Namespace}}
	patch := `{"metadata":{"labels":{"` + i.label() + `":"","pod-security.kubernetes.io/enforce":"restricted"}}}`
	must(t, i.Client.Patch(t.Context(), own, client.RawPatch(types.MergePatchType, []byte(patch))))
	path := filepath.Join(t.TempDir(), "target")
	env.WriteKubeconfig(t, path, target.Admin)
	kubeconfig, err := os.ReadFile(path)
	must(t, err)
	must(t, i.Client.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: i.Namespace, Name: "target"}, Data: map[string][]byte{"kubeconfig": kubeconfig},
	}))
	return i
}

// label is the label of the namespaces that the fleet of the test serves.
func (i *installation) label() string { return "fleet-of-" + i.Namespace }

// fleet returns the objects of the chart in mode fleet, with additional values.
func (i *installation) fleet(of values) []*unstructured.Unstructured {
	i.t.Helper()
	of["mode"], of["image"] = "fleet", values{"repository": "registry.example.com/millwright"}
	of["serviceMonitor"], of["networkPolicy"] = values{"enabled": true}, values{"enabled": true}
	of["fleet"] = values{"namespaceSelector": i.label(), "targetSecretName": "target"}
	return charted(i.t, i.Namespace, of)
}
