package env

import (
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// InstallMCMsCRDs takes out of the CRDs of machine.sapcloud.io what MCM's lack, for all tests of the control
// plane. It is called once.
func (c *Cluster) InstallMCMsCRDs(t testing.TB) {
	t.Helper()
	for _, plural := range []string{"machinesets", "machinedeployments"} {
		crd := &metav1.PartialObjectMetadata{}
		crd.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
		crd.Name = plural + "." + v1alpha1.GroupName
		remove := `[{"op":"remove","path":"/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/selector"}]`
		if err := c.Client.Patch(t.Context(), crd, client.RawPatch(types.JSONPatchType, []byte(remove))); err != nil {
			t.Fatal(err)
		}
	}
	published := discovery.NewDiscoveryClientForConfigOrDie(c.Admin).RESTClient()
	gomega.NewWithT(t).Eventually(func(g gomega.Gomega) {
		raw, err := published.Get().AbsPath("/openapi/v3/apis", v1alpha1.GroupName, v1alpha1.SchemeGroupVersion.Version).Do(t.Context()).Raw()
		g.Expect(err).NotTo(gomega.HaveOccurred())
		g.Expect(strings.Contains(string(raw), "Selector is spec.selector")).To(gomega.BeFalse(), "the schema of before is still published")
	}).WithTimeout(time.Minute).WithPolling(50 * time.Millisecond).Should(gomega.Succeed())
}
