package manager

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/go-logr/logr/testr"
	"github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// heard collects the warnings of an API server.
type heard struct {
	mu  sync.Mutex
	all []string
}

func (h *heard) HandleWarningHeaderWithContext(_ context.Context, _ int, _, text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = append(h.all, text)
}

// TestStatus_OmitsFieldsMissingInCRDs checks that no field is sent that MCM's CRDs lack. The API server would
// return a warning for each status update, and the warnings are logged.
func TestStatus_OmitsFieldsMissingInCRDs(t *testing.T) {
	tier.All(t)
	e := env.New(t, env.WithOwn())
	cfg := Config{Control: e.Admin, Log: testr.New(t), Settings: Settings{Namespace: e.Namespace, Half: HalfSets, ConcurrentSyncs: 2}}
	if lacksSelector(t.Context(), cfg) {
		t.Error("our CRDs lack status.selector")
	}
	for _, plural := range []string{"machinesets", "machinedeployments"} {
		crd := &unstructured.Unstructured{}
		crd.SetAPIVersion("apiextensions.k8s.io/v1")
		crd.SetKind("CustomResourceDefinition")
		crd.SetName(plural + "." + v1alpha1.GroupName)
		patch := `[{"op":"remove","path":"/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/selector"}]`
		if err := e.Client.Patch(t.Context(), crd, client.RawPatch(types.JSONPatchType, []byte(patch))); err != nil {
			t.Fatal(err)
		}
	}
	g := gomega.NewWithT(t)
	g.Eventually(func() bool { return lacksSelector(t.Context(), cfg) }).WithTimeout(env.WaitTimeout).Should(gomega.BeTrue())

	var warnings heard
	cfg.Control = rest.CopyConfig(e.Admin) // the test's own writes cause warnings too
	cfg.Control.WarningHandlerWithContext = &warnings
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, cfg) }()
	for _, object := range onePool(e.Namespace) {
		if err := e.Client.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	g.Eventually(func(g gomega.Gomega) {
		deployment := &v1alpha1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: "one"}}
		g.Expect(e.Client.Get(t.Context(), client.ObjectKeyFromObject(deployment), deployment)).To(gomega.Succeed())
		g.Expect(deployment.Status.Replicas).To(gomega.BeEquivalentTo(2))
	}).WithTimeout(env.WaitTimeout).Should(gomega.Succeed())
	stop()
	if err := <-ended; err != nil {
		t.Errorf("the manager returned %v", err)
	}
	if len(warnings.all) > 0 {
		t.Errorf("warnings: %q", warnings.all)
	}
}

// TestSchema_OfMachineSets checks how the field is found in OpenAPI documents.
func TestSchema_OfMachineSets(t *testing.T) {
	const kind = `"x-kubernetes-group-version-kind":[{"group":"machine.sapcloud.io","version":"v1alpha1","kind":"MachineSet"}]`
	cases := map[string]struct {
		raw   string
		lacks bool
		err   error
	}{
		"ours":      {`{"components":{"schemas":{"s":{` + kind + `,"properties":{"status":{"properties":{"selector":{}}}}}}}}`, false, nil},
		"MCM's":     {`{"components":{"schemas":{"s":{` + kind + `,"properties":{"status":{"properties":{"replicas":{}}}}}}}}`, true, nil},
		"not found": {`{"components":{"schemas":{"s":{}}}}`, false, errNoSchema},
	}
	for name, tc := range cases {
		if lacks, err := schemaLacksSelector([]byte(tc.raw)); lacks != tc.lacks || !errors.Is(err, tc.err) {
			t.Errorf("%s: %v, %v", name, lacks, err)
		}
	}
	if _, err := schemaLacksSelector([]byte("[")); err == nil {
		t.Error("an invalid document is accepted")
	}
}
