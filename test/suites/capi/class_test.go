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

	"github.com/millwright-dev/millwright/test/support/capicore"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// T5, T6: the topology controller creates our templates from those of the class, tries every change in a dry run
// first, and writes nothing once everything is as desired.
func TestClusterClass_ChangeIsAppliedOnce(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newEmptyHarness(t, env.New(t, env.WithControllerManager()).Cluster)
	h.managerWithWebhooks()
	h.apply(contract+"/class.yaml", nil)
	grown := func(g gomega.Gomega, size string, templates int) {
		h.playStubs(g)
		for _, machine := range h.settled(g, 2) {
			g.Expect(h.node(g, text(machine, "status", "nodeRef", "name")).Labels).To(gomega.HaveKeyWithValue("size", size))
		}
		g.Expect(names(h.list(g, "MillwrightMachineTemplate"))).To(gomega.HaveLen(templates))
		// The core first makes a Secret the owner. The garbage collector, which discovers new kinds only every
		// half minute, removes that reference.
		for _, infra := range h.list(g, "MillwrightCluster") {
			g.Expect(infra.GetOwnerReferences()).To(gomega.HaveLen(1))
		}
	}
	h.eventually(func(g gomega.Gomega) { grown(g, "small", 2) })
	h.staysQuiet(10 * time.Second)

	// One template belongs to the class, and the replaced one stays with its MachineSet.
	h.patch("Cluster", h.cluster, `{"spec":{"topology":{"variables":[{"name":"size","value":"large"}]}}}`)
	h.eventually(func(g gomega.Gomega) { grown(g, "large", 3) })
	h.staysQuiet(10 * time.Second)

	h.remove("Cluster", h.cluster)
	h.eventually(func(g gomega.Gomega) {
		g.Expect(names(h.list(g, "Cluster"))).To(gomega.BeEmpty())
		g.Expect(h.vms(g)).To(gomega.BeEmpty())
	})
}

// playStubs does what providers of control planes and of bootstrap data would.
func (h *harness) playStubs(g gomega.Gomega) {
	for _, plane := range h.list(g, "StubControlPlane") {
		if asked := text(plane, "spec", "version"); text(plane, "status", "version") != asked {
			h.patch("StubControlPlane", plane.GetName(), fmt.Sprintf(
				`{"status":{"version":%q,"initialized":true,"ready":true,"initialization":{"controlPlaneInitialized":true}}}`, asked))
		}
	}
	for _, bootstrap := range h.list(g, "StubBootstrap") {
		if text(bootstrap, "status", "dataSecretName") == "" {
			h.patch("StubBootstrap", bootstrap.GetName(),
				`{"status":{"dataSecretName":"workers","ready":true,"initialization":{"dataSecretCreated":true}}}`)
		}
	}
}

// T3, C8: the webhooks reject changes, and permit dry runs.
func TestTemplate_IsImmutable(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newHarness(t)
	h.managerWithWebhooks()
	h.pool("workers", 0, `{}`)
	change := func(annotations string, options ...client.PatchOption) error {
		patch := fmt.Sprintf(`{"metadata":{"annotations":%s},"spec":{"template":{"spec":{"providerSpec":{"latency":"1ms"}}}}}`, annotations)
		return h.Client.Patch(t.Context(), h.object("MillwrightMachineTemplate", "workers"),
			client.RawPatch("application/merge-patch+json", []byte(patch)), options...)
	}
	const announced = `{"topology.cluster.x-k8s.io/dry-run":""}`
	refused := gomega.MatchError(gomega.ContainSubstring("is immutable"))
	h.eventually(func(g gomega.Gomega) { g.Expect(change(`{}`)).To(refused) })
	g := gomega.NewWithT(t)
	g.Expect(change(`{}`, client.DryRunAll)).To(refused)
	g.Expect(change(announced)).To(refused)
	g.Expect(change(announced, client.DryRunAll)).To(gomega.Succeed())
	spec, _, _ := unstructured.NestedMap(h.get(g, "MillwrightMachineTemplate", "workers").Object, "spec", "template", "spec", "providerSpec")
	g.Expect(spec).To(gomega.BeEmpty())

	h.patch("MillwrightCluster", h.cluster, `{"metadata":{"annotations":{"cluster.x-k8s.io/managed-by":"another"}}}`)
	err := h.Client.Patch(t.Context(), h.object("MillwrightCluster", h.cluster),
		client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"annotations":{"cluster.x-k8s.io/managed-by":null}}}`)))
	g.Expect(err).To(gomega.MatchError(gomega.ContainSubstring("cannot be removed")))
}

// managerWithWebhooks starts a manager whose webhooks serve this test, and returns their address and certificate.
func (h *harness) managerWithWebhooks() (port int, certificate []byte) {
	h.t.Helper()
	name := "millwright-" + h.Namespace
	port, err := h.ControlPlane.PortFor(name, 0)
	if err != nil {
		h.t.Fatal(err)
	}
	certificate, err = capicore.WriteCertificate(h.path("webhooks"))
	if err != nil {
		h.t.Fatal(err)
	}
	h.manager("--webhook-port", fmt.Sprint(port), "--webhook-cert-dir", h.path("webhooks"))
	err = capicore.Register(h.t.Context(), h.Client, filepath.Join("../../../config/capi/webhook/configuration.yaml"),
		capicore.Registration{Name: name, Port: port, CABundle: certificate, Namespace: h.Namespace})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { // before the manager stops, because the remaining objects could not be deleted otherwise
		if err := h.Client.Delete(context.Background(), &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			h.t.Error(err)
		}
	})
	return port, certificate
}
