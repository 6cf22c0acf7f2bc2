package manager

import "github.com/millwright-dev/millwright/api/machine/v1alpha1"

// Half is a process of MCM. Its value is the name of the process, and of its lease.
type Half string

const (
	// HalfMachines has the controllers of Machines, of MachineClasses and their Secrets and of Nodes,
	// and collects orphaned VMs.
	HalfMachines Half = v1alpha1.LeaseMachineController
	// HalfSets has the controllers of MachineSets and MachineDeployments. It needs no driver.
	HalfSets Half = v1alpha1.LeaseMachineControllerManager
)

// runs reports whether the manager does the work of that half.
func (c Config) runs(half Half) bool {
	return c.has(APIMCM) && (c.Half == "" || c.Half == half)
}
