package chart

import (
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	i := &installation{Env: env.New(t), t: t}
	must(t, controlplane.InstallCRDs(t.Context(), i.Admin, os.DirFS("testdata/crds")))
	target := env.New(t, env.WithNumber(1)).Cluster
	label := "fleet-of-" + i.Namespace
	own := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: i.Namespace}}
	patch := `{"metadata":{"labels":{"` + label + `":"","pod-security.kubernetes.io/enforce":"restricted"}}}`
	must(t, i.Client.Patch(t.Context(), own, client.RawPatch(types.MergePatchType, []byte(patch))))
	path := filepath.Join(t.TempDir(), "target")
	env.WriteKubeconfig(t, path, target.Admin)
	kubeconfig, err := os.ReadFile(path)
	must(t, err)
	must(t, i.Client.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: i.Namespace, Name: "target"}, Data: map[string][]byte{"kubeconfig": kubeconfig},
	}))

	all := charted(t, i.Namespace, values{
		"mode": "fleet", "driver": "sim", "image": values{"repository": "registry.example.com/millwright"},
		"serviceMonitor": values{"enabled": true}, "networkPolicy": values{"enabled": true},
		"fleet": values{"namespaceSelector": label, "targetSecretName": "target"},
	})
	for _, deployment := range apply(t, i.Cluster, all) {
		spec := deployment.Spec.Template.Spec
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: i.Namespace, GenerateName: "pod-"}, Spec: spec}
		must(t, i.Client.Create(t.Context(), pod, client.DryRunAll))
		access := i.kubeconfig(spec.ServiceAccountName)
		i.start(deployment.Name, spec.Containers[0], access)
	}
	i.makesMachines()
}
