package capi

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// updating is the annotation of objects that the core updates in place.
const updating = "in-place-updates.internal.cluster.x-k8s.io/update-in-progress"

// I1 to I4: a new template that differs only in what the driver can change keeps the VMs, and one that differs in
// more replaces them, as without the extension.
func TestMillwrightMachine_IsUpdatedInPlace(t *testing.T) {
	tier.All(t)
	if contract != "v1beta2" {
		t.Skipf("Cluster API %s has no updates in place", version)
	}
	t.Parallel()
	h := newHarness(t)
	h.registerExtension(h.managerWithWebhooks())
	h.madeFrom("workers", `{"pool":"workers","nodeLabels":{"size":"small"},"tags":{"a":"1"}}`)
	h.apply(contract+"/inplace.yaml", map[string]string{"POOL": "workers"})
	var before map[string]sim.VM
	h.eventually(func(g gomega.Gomega) {
		h.playStubs(g)
		h.settled(g, 2)
		before = h.vmsByID(g)
	})

	h.template("tagged", `{"pool":"workers","nodeLabels":{"size":"small"},"tags":{"a":"2"}}`)
	h.patch("MachineDeployment", "workers", `{"spec":{"template":{"spec":{"infrastructureRef":{"name":"tagged"}}}}}`)
	h.eventually(func(g gomega.Gomega) {
		h.playStubs(g)
		for id, vm := range h.vmsByID(g) {
			g.Expect(before).To(gomega.HaveKey(id), "a VM was replaced")
			g.Expect(vm.Tags).To(gomega.HaveKeyWithValue("a", "2"))
		}
		h.rolledOut(g, "tagged")
	})

	h.template("large", `{"pool":"workers","nodeLabels":{"size":"large"},"tags":{"a":"3"}}`)
	h.patch("MachineDeployment", "workers", `{"spec":{"template":{"spec":{"infrastructureRef":{"name":"large"}}}}}`)
	h.eventually(func(g gomega.Gomega) {
		h.playStubs(g)
		for id := range h.vmsByID(g) {
			g.Expect(before).NotTo(gomega.HaveKey(id), "a VM was kept")
		}
		h.rolledOut(g, "large")
	})
	h.remove("MachineDeployment", "workers")
	h.eventually(func(g gomega.Gomega) { g.Expect(h.vms(g)).To(gomega.BeEmpty()) })
}

// madeFrom sets the template of the machines of a pool.
func (h *harness) madeFrom(name, providerSpec string) {
	h.t.Helper()
	h.apply("pool.yaml", map[string]string{"POOL": name, "PROVIDERSPEC": providerSpec})
}

// template creates a template for MillwrightMachines.
func (h *harness) template(name, providerSpec string) {
	h.t.Helper()
	object := h.object("MillwrightMachineTemplate", name)
	var spec map[string]any
	if err := yaml.Unmarshal([]byte(providerSpec), &spec); err != nil {
		h.t.Fatal(err)
	}
	object.Object["spec"] = map[string]any{"template": map[string]any{"spec": map[string]any{"driver": "sim", "providerSpec": spec}}}
	if err := h.Client.Create(h.t.Context(), object); err != nil {
		h.t.Fatal(err)
	}
}

// vmsByID returns the VMs by provider ID.
func (h *harness) vmsByID(g gomega.Gomega) map[string]sim.VM {
	vms, err := h.cloud.VMs()
	g.Expect(err).NotTo(gomega.HaveOccurred())
	all := map[string]sim.VM{}
	for _, vm := range vms {
		all[vm.ProviderID] = vm
	}
	return all
}

// rolledOut checks that two machines are created from a template, and that no rollout is in progress.
func (h *harness) rolledOut(g gomega.Gomega, template string) {
	h.settled(g, 2)
	for _, machine := range append(h.list(g, "Machine"), h.list(g, "MillwrightMachine")...) {
		g.Expect(machine.GetAnnotations()).NotTo(gomega.HaveKey(updating), machine.GetName())
	}
	for _, infra := range h.list(g, "MillwrightMachine") {
		g.Expect(infra.GetAnnotations()).To(gomega.HaveKeyWithValue("cluster.x-k8s.io/cloned-from-name", template))
	}
}

// registerExtension registers the manager's hooks as shipped, except for their address and certificate, and for
// this test's namespace only.
func (h *harness) registerExtension(port int, caBundle []byte) {
	h.t.Helper()
	text, err := os.ReadFile("../../../config/capi/extension.yaml")
	if err != nil {
		h.t.Fatal(err)
	}
	extension := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(text, extension); err != nil {
		h.t.Fatal(err)
	}
	const inject = "runtime.cluster.x-k8s.io/inject-ca-from-secret"
	_, name, _ := strings.Cut(extension.GetAnnotations()[inject], "/")
	certificate := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: h.Namespace, Name: name}, Data: map[string][]byte{"ca.crt": caBundle}}
	if err := h.Client.Create(h.t.Context(), certificate); err != nil {
		h.t.Fatal(err)
	}
	extension.SetName("millwright-" + h.Namespace)
	extension.SetAnnotations(map[string]string{inject: h.Namespace + "/" + name})
	extension.Object["spec"] = map[string]any{
		"clientConfig":      map[string]any{"url": fmt.Sprintf("https://127.0.0.1:%d", port)},
		"namespaceSelector": map[string]any{"matchLabels": map[string]any{corev1.LabelMetadataName: h.Namespace}},
	}
	h.eventually(func(g gomega.Gomega) { // until the core's webhooks know the kind
		g.Expect(h.Client.Create(h.t.Context(), extension.DeepCopy())).To(gomega.Succeed())
	})
	h.t.Cleanup(func() {
		if err := h.Client.Delete(context.Background(), extension); err != nil {
			h.t.Error(err)
		}
	})
	h.eventually(func(g gomega.Gomega) {
		got := extension.DeepCopy()
		g.Expect(h.Client.Get(h.t.Context(), client.ObjectKeyFromObject(extension), got)).To(gomega.Succeed())
		handlers, _, _ := unstructured.NestedSlice(got.Object, "status", "handlers")
		g.Expect(handlers).To(gomega.HaveLen(3), "%v", got.Object["status"])
	})
}
