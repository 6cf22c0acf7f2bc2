// Package controller runs MCM's integration suite for the drivers of Millwright, and for other drivers that
// "millwright instance list" supports. hack/test-integration.sh prepares its environment.
package controller

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/gardener/machine-controller-manager/pkg/apis/machine/v1alpha1"
	"github.com/gardener/machine-controller-manager/pkg/test/integration/common"
)

func TestController(t *testing.T) {
	if os.Getenv("CONTROL_KUBECONFIG") == "" {
		t.Skip("needs a cluster: CONTROL_KUBECONFIG is not set; \"make test-integration\" starts one")
	}
	RegisterFailHandler(Fail)
	RunSpecs(t, "Controller Suite")
}

var commons = common.NewIntegrationTestFramework(&tracker{}, 300, 1)

var _ = BeforeSuite(commons.SetupBeforeSuite)

var _ = AfterSuite(commons.Cleanup)

var _ = Describe("Machine controllers test", func() {
	commons.BeforeEachCheck()
	commons.ControllerTests()
})

// tracker lists the VMs of the driver with the command LIST_COMMAND.
type tracker struct {
	// foreign are the VMs that existed before the suite.
	foreign map[string]bool
}

// InitializeResourcesTracker records the existing VMs.
func (t *tracker) InitializeResourcesTracker(*v1alpha1.MachineClass, map[string][]byte, string) (err error) {
	t.foreign, err = vms()
	return err
}

// IsOrphanedResourcesAvailable reports whether there are other VMs, or whether the VMs cannot be listed.
func (t *tracker) IsOrphanedResourcesAvailable() bool {
	now, err := vms()
	for id := range t.foreign {
		delete(now, id)
	}
	return err != nil || len(now) > 0
}

// vms returns the IDs of all VMs of the class.
func vms() (map[string]bool, error) {
	command := exec.Command("sh", "-c", os.Getenv("LIST_COMMAND"))
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("LIST_COMMAND failed: %w", err)
	}
	var list struct {
		Machines []struct {
			ProviderID string `json:"providerID"`
		} `json:"machines"`
	}
	if err := json.Unmarshal(out, &list); err != nil {
		return nil, fmt.Errorf("cannot parse the output of LIST_COMMAND: %w", err)
	}
	found := map[string]bool{}
	for _, machine := range list.Machines {
		found[machine.ProviderID] = true
	}
	return found, nil
}
