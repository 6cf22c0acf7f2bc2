package chart

import (
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/internal/local/controlplane"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestChart_VMControllerIsAdmitted checks that an API server accepts every object of its manifests, and its Pods
// with the Pod Security level "restricted".
func TestChart_VMControllerIsAdmitted(t *testing.T) {
	tier.All(t)
	t.Parallel()
	e := env.New(t)
	must(t, controlplane.InstallCRDs(t.Context(), e.Admin, os.DirFS("testdata/crds")))
	must(t, client.IgnoreAlreadyExists(e.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "virtual-machines"}})))
	deployments := apply(t, e.Cluster, kustomized(t, "../vm/base", "../vm/monitoring", "../vm/network-policy"))
	deployments = append(deployments, apply(t, e.Cluster, kustomized(t, "../vm/base", "../vm/all-namespaces"))...)
	if len(deployments) != 2 {
		t.Errorf("there are %d deployments", len(deployments))
	}
	for _, deployment := range deployments {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "pod-", Labels: deployment.Spec.Template.Labels}, Spec: deployment.Spec.Template.Spec}
		must(t, e.Client.Create(t.Context(), pod, client.DryRunAll))
	}
}
