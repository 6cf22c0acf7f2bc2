package capi

import (
	"testing"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// R3: whoever deletes a namespace deletes the credentials at the same moment as the machines,
// and can make no new ones. The VMs take a while to go, so that they would be asked about
// without them. The lease would go with the namespace, so there is none.
func TestANamespaceIsDeletedWithItsMachines(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.manager("--leader-elect=false")
	w.pool("workers", 0, `{}`)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: "cloud"}}
	if err := w.Client.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"one", "two"} {
		w.machine(w.own(name), `{"driver":"sim","providerSpec":{"deleteDelay":"5s"},"credentialsSecretRef":{"name":"cloud"}}`, data)
	}
	w.eventually(func(g gomega.Gomega) { w.settled(g, 2) })
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.Namespace}}
	if err := w.Client.Delete(t.Context(), namespace); err != nil {
		t.Fatal(err)
	}
	w.eventually(func(g gomega.Gomega) {
		err := w.Client.Get(t.Context(), client.ObjectKeyFromObject(namespace), namespace)
		g.Expect(apierrors.IsNotFound(err)).To(gomega.BeTrue(), "%v; its conditions: %v", err, namespace.Status.Conditions)
		g.Expect(w.vms(g)).To(gomega.BeEmpty())
	})
}
