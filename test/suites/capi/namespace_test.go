package capi

import (
	"testing"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/test/support/tier"
)

// R3: deleting a namespace deletes the credentials together with the machines, and new ones cannot be created.
// The deletion of the VMs takes a while, so the driver would be called without credentials. The lease would be
// deleted with the namespace, so leader election is disabled.
func TestNamespace_DeletionDeletesMachines(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newHarness(t)
	h.manager("--leader-elect=false")
	h.pool("workers", 0, `{}`)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: h.Namespace, Name: "cloud"}}
	if err := h.Client.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"one", "two"} {
		h.machine(h.own(name), `{"driver":"sim","providerSpec":{"deleteDelay":"5s"},"credentialsSecretRef":{"name":"cloud"}}`, data)
	}
	h.eventually(func(g gomega.Gomega) { h.settled(g, 2) })
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: h.Namespace}}
	if err := h.Client.Delete(t.Context(), namespace); err != nil {
		t.Fatal(err)
	}
	h.eventually(func(g gomega.Gomega) {
		err := h.Client.Get(t.Context(), client.ObjectKeyFromObject(namespace), namespace)
		g.Expect(apierrors.IsNotFound(err)).To(gomega.BeTrue(), "%v; its conditions: %v", err, namespace.Status.Conditions)
		g.Expect(h.vms(g)).To(gomega.BeEmpty())
	})
}
