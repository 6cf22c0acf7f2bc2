//go:build !mcm_no_initialize

package imports

import (
	"testing"

	"github.com/gardener/machine-controller-manager/pkg/util/provider/driver"
)

// TestDriver_InitializesMachine calls InitializeMachine as the tests of providers do.
func TestDriver_InitializesMachine(t *testing.T) {
	resp, err := d.InitializeMachine(t.Context(), &driver.InitializeMachineRequest{Machine: &machine, MachineClass: &class})
	if err != nil || resp.NodeName != "node" {
		t.Errorf("got %+v, %v", resp, err)
	}
}
