package manager

import "github.com/millwright-dev/millwright/api/machine/v1alpha1"

// Half is one of MCM's two processes. Its value is the name of the process and of its lease.
type Half string

const (
	// HalfMachines runs the controllers of Machines, of MachineClasses and their Secrets, and of Nodes. It also
	// collects orphaned VMs.
	HalfMachines Half = v1alpha1.LeaseMachineController
	// HalfSets runs the controllers of MachineSets and MachineDeployments. It needs no driver.
	HalfSets Half = v1alpha1.LeaseMachineControllerManager
)

// runs reports whether the manager runs the controllers of a half.
func (c Config) runs(half Half) bool {
	return c.has(APIMCM) && (c.Half == "" || c.Half == half)
}
