package capi

import (
	"os/exec"
	"testing"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/capicore"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// K7: the objects get new UIDs and lose their status, and the VMs are found again from what remains.
func TestClusterctlMove_KeepsVMs(t *testing.T) {
	tier.All(t)
	t.Parallel()
	e := env.NewPair(t, env.WithControllerManager())
	h := newHarnessIn(t, e.Cluster)
	requireCore(t, e.Target)
	labelForClusterctl(t, e.Cluster)
	labelForClusterctl(t, e.Target)
	clusterctl, err := capicore.File(version, "clusterctl")
	if err != nil {
		t.Fatal(err)
	}
	source := h.manager("--installation", "ours")
	h.pool("workers", 2, `{}`)
	h.declareShared()
	third := h.own("third")
	h.machine(third, `{"driver":"sim","machineClassRef":{"name":"small"},"credentialsSecretRef":{"name":"cloud"}}`, data)
	h.eventually(func(g gomega.Gomega) { h.settled(g, 3) })
	before, err := h.cloud.VMs()
	if err != nil {
		t.Fatal(err)
	}

	// Both managers are running; only pausing separates them.
	moved := *h
	moved.Cluster = &env.Cluster{
		Namespace: h.Namespace, Admin: e.Target.Admin, Client: e.Target.Client, ControlPlane: e.Target.ControlPlane,
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: h.Namespace}}
	if err := e.Target.Client.Create(t.Context(), namespace); err != nil {
		t.Fatal(err)
	}
	target := moved.managerAt(moved.Cluster, "--installation", "ours")
	out, err := exec.CommandContext(t.Context(), clusterctl, "move", "--namespace", h.Namespace,
		"--kubeconfig", e.ControlPlane.Kubeconfig(), "--to-kubeconfig", e.Target.ControlPlane.Kubeconfig(), "-v", "2").CombinedOutput()
	if err != nil {
		t.Fatalf("clusterctl move: %v\n%s", err, out)
	}
	moved.eventually(func(g gomega.Gomega) {
		g.Expect(moved.list(g, "Machine")).To(gomega.HaveLen(3))
		for _, ours := range moved.list(g, "MillwrightMachine") {
			g.Expect(condition(&ours, "Ready")).To(gomega.HaveKeyWithValue("status", "True"), ours.GetName())
			g.Expect(condition(&ours, "Paused")).To(gomega.HaveKeyWithValue("status", "False"), ours.GetName())
		}
		g.Expect(h.list(g, "MillwrightMachine")).To(gomega.BeEmpty())
	})
	after, err := h.cloud.VMs()
	if err != nil {
		t.Fatal(err)
	}
	gomega.NewWithT(t).Expect(after).To(gomega.Equal(before))
	source.Stop()

	// The VMs are deleted with their new owner, which protects the objects required for that.
	moved.scale("workers", 1)
	moved.eventually(func(g gomega.Gomega) { g.Expect(moved.vms(g)).To(gomega.HaveLen(2)) })
	for _, object := range shared(h.Namespace) {
		if err := moved.Client.Delete(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	moved.remove("Machine", third)
	moved.eventually(func(g gomega.Gomega) {
		g.Expect(moved.vms(g)).To(gomega.HaveLen(1))
		for _, c := range []*harness{h, &moved} {
			for _, object := range shared(h.Namespace) {
				err := c.Client.Get(t.Context(), client.ObjectKeyFromObject(object), object)
				g.Expect(apierrors.IsNotFound(err)).To(gomega.BeTrue(), "%T: %v", object, err)
			}
		}
	})
	target.Stop()
}

// shared creates a class and a Secret without an owner. clusterctl moves them because of their label.
func shared(namespace string) []client.Object {
	meta := metav1.ObjectMeta{Namespace: namespace, Labels: map[string]string{"clusterctl.cluster.x-k8s.io/move": ""}}
	class, secret := &v1alpha1.MachineClass{ObjectMeta: *meta.DeepCopy()}, &corev1.Secret{ObjectMeta: *meta.DeepCopy()}
	class.Name, class.ProviderSpec.Raw = "small", []byte(`{}`)
	secret.Name = "cloud"
	return []client.Object{class, secret}
}

func (h *harness) declareShared() {
	h.t.Helper()
	for _, object := range shared(h.Namespace) {
		if err := h.Client.Create(h.t.Context(), object); err != nil {
			h.t.Fatal(err)
		}
	}
}

// labelForClusterctl labels the CRDs as clusterctl does when it installs them. The labels determine what
// clusterctl moves.
func labelForClusterctl(t *testing.T, c *env.Cluster) {
	t.Helper()
	crds := &unstructured.UnstructuredList{}
	crds.SetGroupVersionKind(crdKind.GroupVersion().WithKind(crdKind.Kind + "List"))
	if err := c.Client.List(t.Context(), crds); err != nil {
		t.Fatal(err)
	}
	for _, crd := range crds.Items {
		switch text(crd, "spec", "group") {
		case "cluster.x-k8s.io", "infrastructure.millwright.dev", "stub.millwright.dev", "machine.sapcloud.io", "clusterctl.cluster.x-k8s.io":
			patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"clusterctl.cluster.x-k8s.io":""}}}`))
			if err := c.Client.Patch(t.Context(), &crd, patch); err != nil {
				t.Fatal(err)
			}
		}
	}
}
