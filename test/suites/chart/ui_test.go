package chart

import (
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/internal/local/controlplane"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// page are values for the page of many users.
var page = values{"enabled": true, "urls": []any{"https://machines.example.com/"}, "tlsSecret": "tls", "ingress": values{"enabled": true, "tlsSecret": "tls"}}

// TestChart_PageHasNoPermissions checks that no role is bound to the account of the page, and that its Pod has no token.
func TestChart_PageHasNoPermissions(t *testing.T) {
	t.Parallel()
	manifests, _, err := template(t, namespace, with("one-pod", values{"ui": page}))
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for document := range strings.SplitSeq(manifests, "\n---\n") {
		if !strings.Contains(document, "millwright-ui") {
			continue
		}
		found++
		for _, not := range []string{"rbac.authorization.k8s.io", "serviceAccountToken:", "hostNetwork", "privileged"} {
			if strings.Contains(document, not) {
				t.Errorf("%s is in\n%s", not, document)
			}
		}
		for _, kind := range []string{"kind: ServiceAccount", "kind: Deployment"} {
			if strings.Contains(document, "\n"+kind+"\n") && !strings.Contains(document, "automountServiceAccountToken: false") {
				t.Errorf("a token is mounted:\n%s", document)
			}
		}
	}
	if found != 5 { // the account, the Deployment, the Service, the Ingress, and the NetworkPolicy
		t.Errorf("%d objects, want 5", found)
	}
}

// TestChart_PageIsAdmitted checks that an API server accepts every object of the page, and its Pod with the Pod Security
// level "restricted".
func TestChart_PageIsAdmitted(t *testing.T) {
	tier.All(t)
	t.Parallel()
	e := env.New(t)
	must(t, controlplane.InstallCRDs(t.Context(), e.Admin, os.DirFS("testdata/crds")))
	own := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: e.Namespace}}
	patch := `{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"restricted"}}}`
	must(t, e.Client.Patch(t.Context(), own, client.RawPatch(types.MergePatchType, []byte(patch))))
	all := charted(t, e.Namespace, values{"mode": "target", "image": values{"repository": "registry.example.com/millwright"}, "ui": page, "networkPolicy": values{"enabled": true}})
	deployments := apply(t, e.Cluster, all)
	if len(deployments) != 1 {
		t.Fatalf("%d Deployments", len(deployments))
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, GenerateName: "pod-", Labels: deployments[0].Spec.Template.Labels}, Spec: deployments[0].Spec.Template.Spec}
	must(t, e.Client.Create(t.Context(), pod, client.DryRunAll))
	for _, volume := range pod.Spec.Volumes {
		for _, source := range projections(volume) {
			if source.ServiceAccountToken != nil {
				t.Errorf("volume %s has a token", volume.Name)
			}
		}
	}
}

func projections(volume corev1.Volume) []corev1.VolumeProjection {
	if volume.Projected == nil {
		return nil
	}
	return volume.Projected.Sources
}
