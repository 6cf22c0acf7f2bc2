package rollout

import "testing"

// TestDeploymentName checks every form of a name that kubectl accepts.
func TestDeploymentName(t *testing.T) {
	for _, args := range [][]string{
		{"pool"}, {"mcd/pool"}, {"mcd", "pool"}, {"machinedeployment/pool"}, {"MachineDeployment", "pool"},
		{"machinedeployments/pool"}, {"machinedeployments.machine.sapcloud.io/pool"},
	} {
		if name, err := deploymentName(args); name != "pool" || err != nil {
			t.Errorf("%q is %q, %v", args, name, err)
		}
	}
}
