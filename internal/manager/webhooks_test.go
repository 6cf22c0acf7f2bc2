package manager

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/test/support/env"
)

// take returns the warnings received since the last call.
func (h *heard) take() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	defer func() { h.all = nil }()
	return slices.Clone(h.all)
}

// register registers the shipped webhooks for the test's namespace only.
func register(t *testing.T, e *env.Env, port int, authority []byte) {
	t.Helper()
	text, err := os.ReadFile("../../config/machine/warnings/configuration/configuration.yaml")
	if err != nil {
		t.Fatal(err)
	}
	config := &admissionv1.ValidatingWebhookConfiguration{}
	if err := yaml.UnmarshalStrict(text, config); err != nil {
		t.Fatal(err)
	}
	config.Name += "-" + e.Namespace
	for i := range config.Webhooks {
		hook := &config.Webhooks[i]
		url := fmt.Sprintf("https://127.0.0.1:%d%s", port, *hook.ClientConfig.Service.Path)
		hook.ClientConfig = admissionv1.WebhookClientConfig{URL: &url, CABundle: authority}
		hook.TimeoutSeconds = ptr.To[int32](30) // the warnings of a call that takes longer are lost
		hook.NamespaceSelector.MatchLabels = map[string]string{corev1.LabelMetadataName: e.Namespace}
	}
	if err := e.Client.Create(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Client.Delete(t.Context(), config.DeepCopy()) })
}

// TestWebhooks_WarnUsers checks that the shipped webhooks, with the shipped permissions, return warnings to users.
// Writes by the controllers cause no warnings, and nothing is rejected while the manager is unavailable.
func TestWebhooks_WarnUsers(t *testing.T) {
	e := newElection(t)
	dir, certificate := webhookCertificate(t)
	port, err := e.env.ControlPlane.PortFor("warnings", 0)
	if err != nil {
		t.Fatal(err)
	}
	register(t, e.env, port, certificate)
	cfg := Config{
		Drivers: registry.Only("sim", sim.New(sim.Config{})),
		Settings: Settings{
			Webhooks:        Webhooks{Port: port, CertDir: dir},
			MachineSettings: MachineSettings{CreationTimeout: time.Minute},
		},
	}
	h := startHalfIn(t, e, HalfMachines, cfg, "config/rbac/machine-controller-role.yaml", "config/rbac/target-role.yaml")

	ears := &heard{}
	access := rest.CopyConfig(e.env.Admin)
	access.WarningHandlerWithContext = ears
	user, err := client.New(access, client.Options{Scheme: env.NewScheme()})
	if err != nil {
		t.Fatal(err)
	}
	g := gomega.NewWithT(t)
	second := onePool(e.env.Namespace)[3].(*v1alpha1.MachineDeployment)
	second.Name, second.Spec.Template.Spec.Class.Name = "two", "later"
	want := []string{
		`spec.template.spec.class.name: MachineClass "later" not found; no machines are created until it exists`,
		`spec.selector: this object and machine deployment "one" select each other's machines`,
	}
	g.Eventually(func(g gomega.Gomega) { // the API server returns no warnings until the manager serves
		g.Expect(user.Create(t.Context(), second.DeepCopy(), client.DryRunAll)).To(gomega.Succeed())
		g.Expect(ears.take()).To(gomega.Equal(want))
	}).WithTimeout(env.WaitTimeout).Should(gomega.Succeed())

	second.Spec.Selector.MatchLabels, second.Spec.Template.Labels = map[string]string{"name": "two"}, map[string]string{"name": "two"}
	second.Spec.Template.Spec.Class.Name = "one"
	g.Expect(user.Create(t.Context(), second)).To(gomega.Succeed())
	g.Expect(ears.take()).To(gomega.BeEmpty(), "warnings for a valid object")
	second.Spec.MinReadySeconds = -1
	g.Expect(user.Update(t.Context(), second)).To(gomega.Succeed())
	g.Expect(ears.take()).To(gomega.ConsistOf("spec.minReadySeconds: Invalid value: -1: must not be negative"))
	second.Labels = map[string]string{"a": "b"}
	g.Expect(user.Update(t.Context(), second)).To(gomega.Succeed())
	g.Expect(ears.take()).To(gomega.BeEmpty(), "warnings for a change of labels")

	h.stop()
	h.forbidden.want(t)
	second.Spec.MinReadySeconds = -2
	g.Expect(user.Update(t.Context(), second)).To(gomega.Succeed(), "without the manager")
}
