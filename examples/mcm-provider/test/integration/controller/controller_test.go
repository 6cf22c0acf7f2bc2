// Package controller runs MCM's integration suite for the provider.
package controller

import (
	"context"
	"os"
	"testing"

	"github.com/gardener/machine-controller-manager/pkg/test/integration/common"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/examples/mcm-provider/test/integration/provider"
)

func TestController(t *testing.T) {
	if os.Getenv("CONTROL_KUBECONFIG") == "" {
		t.Skip("needs a cluster: CONTROL_KUBECONFIG is not set")
	}
	RegisterFailHandler(Fail)
	RunSpecs(t, "Controller Suite")
}

var commons = common.NewIntegrationTestFramework(&provider.ResourcesTrackerImpl{}, 120, 1)

var _ = BeforeSuite(commons.SetupBeforeSuite)

var _ = AfterSuite(commons.Cleanup)

var _ = Describe("Machine controllers test", func() {
	commons.BeforeEachCheck()
	commons.ControllerTests()
})

// An additional spec of the provider, which uses the clients of the suite.
var _ = Describe("classes", func() {
	It("have this provider", func(ctx context.Context) {
		classes, err := commons.ControlCluster.McmClient.MachineV1alpha1().MachineClasses(os.Getenv("CONTROL_CLUSTER_NAMESPACE")).
			List(ctx, metav1.ListOptions{})
		Expect(err).NotTo(HaveOccurred())
		Expect(classes.Items).To(HaveEach(HaveField("Provider", "folder")))
		Expect(commons.TargetCluster.ProbeNodes()).To(Succeed())
	})
})
