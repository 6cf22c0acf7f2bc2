// Package byname tests which Machines are deleted when an autoscaler marks some Machines of a MachineDeployment.
// It runs the controllers of MachineDeployments and MachineSets together, with caches that lag behind.
package byname
