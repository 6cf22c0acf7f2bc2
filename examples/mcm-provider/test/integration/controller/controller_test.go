// Package controller runs MCM's integration suite for the provider.
package controller

import (
	"os"
	"testing"

	"github.com/gardener/machine-controller-manager/pkg/test/integration/common"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

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
