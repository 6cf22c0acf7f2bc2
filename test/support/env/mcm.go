package env

import (
	"fmt"
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

// InstallMCMsCRDs removes from the CRDs of machine.sapcloud.io what MCM's CRDs lack, for all tests of the control
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
	c.takeMCMsQuantities(t)
	published := discovery.NewDiscoveryClientForConfigOrDie(c.Admin).RESTClient()
	gomega.NewWithT(t).Eventually(func(g gomega.Gomega) {
		raw, err := published.Get().AbsPath("/openapi/v3/apis", v1alpha1.GroupName, v1alpha1.SchemeGroupVersion.Version).Do(t.Context()).Raw()
		g.Expect(err).NotTo(gomega.HaveOccurred())
		for _, ours := range []string{"Selector is spec.selector", "{1,30}"} {
			g.Expect(strings.Contains(string(raw), ours)).To(gomega.BeFalse(), "the schema of before is still published")
		}
	}).WithTimeout(WaitTimeout).WithPolling(50 * time.Millisecond).Should(gomega.Succeed())
}

// mcmsQuantity is the pattern of quantities that controller-gen generates.
const mcmsQuantity = `^(\\+|-)?(([0-9]+(\\.[0-9]*)?)|(\\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\\+|-)?(([0-9]+(\\.[0-9]*)?)|(\\.[0-9]+))))?$`

// takeMCMsQuantities makes the CRD of MachineClasses accept the quantities that MCM's accepts.
func (c *Cluster) takeMCMsQuantities(t testing.TB) {
	t.Helper()
	crd := &metav1.PartialObjectMetadata{}
	crd.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	crd.Name = "machineclasses." + v1alpha1.GroupName
	var changes []string
	for _, field := range []string{"capacity", "virtualCapacity"} {
		changes = append(changes, fmt.Sprintf(`{"op":"replace","path":"/spec/versions/0/schema/openAPIV3Schema/properties/nodeTemplate/properties/%s/additionalProperties/pattern","value":"%s"}`, field, mcmsQuantity))
	}
	if err := c.Client.Patch(t.Context(), crd, client.RawPatch(types.JSONPatchType, []byte("["+strings.Join(changes, ",")+"]"))); err != nil {
		t.Fatal(err)
	}
}
