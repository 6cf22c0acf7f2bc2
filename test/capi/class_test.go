package capi

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/test/env"
)

// T5, T6: the topology controller makes templates of ours from those of the class, tries
// every change out first, and finds nothing to do once all is as it should be.
func TestAClusterOfAClassIsMadeAndChangedOnce(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t, env.New(t, env.WithControllerManager()).Cluster)
	w.managerWithWebhooks()
	w.apply(contract+"/class.yaml", nil)
	grown := func(g gomega.Gomega, size string, templates int) {
		w.playStubs(g)
		for _, machine := range w.settled(g, 2) {
			g.Expect(w.node(g, text(machine, "status", "nodeRef", "name")).Labels).To(gomega.HaveKeyWithValue("size", size))
		}
		g.Expect(names(w.list(g, "MillwrightMachineTemplate"))).To(gomega.HaveLen(templates))
		// The core first has a Secret own it. The garbage collector takes that reference
		// off, which hears of new kinds every half minute only.
		for _, infra := range w.list(g, "MillwrightCluster") {
			g.Expect(infra.GetOwnerReferences()).To(gomega.HaveLen(1))
		}
	}
	w.eventually(func(g gomega.Gomega) { grown(g, "small", 2) })
	w.staysQuiet(20 * time.Second)

	// One template is the class's own, and the one that was replaced stays with its
	// MachineSet.
	w.patch("Cluster", w.cluster, `{"spec":{"topology":{"variables":[{"name":"size","value":"large"}]}}}`)
	w.eventually(func(g gomega.Gomega) { grown(g, "large", 3) })
	w.staysQuiet(20 * time.Second)

	w.remove("Cluster", w.cluster)
	w.eventually(func(g gomega.Gomega) {
		g.Expect(names(w.list(g, "Cluster"))).To(gomega.BeEmpty())
		g.Expect(w.vms(g)).To(gomega.BeEmpty())
	})
}

// playStubs does what providers of control planes and of bootstrap data would.
func (w *world) playStubs(g gomega.Gomega) {
	for _, plane := range w.list(g, "StubControlPlane") {
		if asked := text(plane, "spec", "version"); text(plane, "status", "version") != asked {
			w.patch("StubControlPlane", plane.GetName(), fmt.Sprintf(
				`{"status":{"version":%q,"initialized":true,"ready":true,"initialization":{"controlPlaneInitialized":true}}}`, asked))
		}
	}
	for _, bootstrap := range w.list(g, "StubBootstrap") {
		if text(bootstrap, "status", "dataSecretName") == "" {
			w.patch("StubBootstrap", bootstrap.GetName(),
				`{"status":{"dataSecretName":"workers","ready":true,"initialization":{"dataSecretCreated":true}}}`)
		}
	}
}

// T3, C8: what the webhooks refuse, and that they let through what is only tried out.
func TestTemplatesDoNotChange(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.managerWithWebhooks()
	w.pool("workers", 0, `{}`)
	change := func(annotations string, options ...client.PatchOption) error {
		patch := fmt.Sprintf(`{"metadata":{"annotations":%s},"spec":{"template":{"spec":{"providerSpec":{"latency":"1ms"}}}}}`, annotations)
		return w.Client.Patch(t.Context(), w.object("MillwrightMachineTemplate", "workers"),
			client.RawPatch("application/merge-patch+json", []byte(patch)), options...)
	}
	const announced = `{"topology.cluster.x-k8s.io/dry-run":""}`
	refused := gomega.MatchError(gomega.ContainSubstring("cannot be changed"))
	w.eventually(func(g gomega.Gomega) { g.Expect(change(`{}`)).To(refused) })
	g := gomega.NewWithT(t)
	g.Expect(change(`{}`, client.DryRunAll)).To(refused)
	g.Expect(change(announced)).To(refused)
	g.Expect(change(announced, client.DryRunAll)).To(gomega.Succeed())
	spec, _, _ := unstructured.NestedMap(w.get(g, "MillwrightMachineTemplate", "workers").Object, "spec", "template", "spec", "providerSpec")
	g.Expect(spec).To(gomega.BeEmpty())

	w.patch("MillwrightCluster", w.cluster, `{"metadata":{"annotations":{"cluster.x-k8s.io/managed-by":"another"}}}`)
	err := w.Client.Patch(t.Context(), w.object("MillwrightCluster", w.cluster),
		client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"annotations":{"cluster.x-k8s.io/managed-by":null}}}`)))
	g.Expect(err).To(gomega.MatchError(gomega.ContainSubstring("cannot be taken off")))
}

// managerWithWebhooks starts a manager whose webhooks answer for this world.
func (w *world) managerWithWebhooks() {
	w.t.Helper()
	name := "millwright-" + w.Namespace
	port, err := w.ControlPlane.PortFor(name, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	certificate, err := writeCertificate(w.path("webhooks"))
	if err != nil {
		w.t.Fatal(err)
	}
	w.manager("--webhook-port", fmt.Sprint(port), "--webhook-cert-dir", w.path("webhooks"))
	err = register(w.t.Context(), w.Client, filepath.Join("../../config/capi/webhook/configuration.yaml"),
		registration{name: name, port: port, caBundle: certificate, namespace: w.Namespace})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { // before the manager ends, or what is left could not be deleted
		if err := w.Client.Delete(context.Background(), &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			w.t.Error(err)
		}
	})
}
