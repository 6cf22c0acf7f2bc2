package v1alpha1

const (
	// Finalizer keeps a VirtualMachine until its hypervisor and then its disk are gone.
	Finalizer = "vm.metropolis.monogon.dev/vm-controller"

	// LabelVM is a label of the Pods and claims of a VM: the VirtualMachine's name.
	LabelVM = "vm.metropolis.monogon.dev/name"

	// HostKey is the key of a label and a taint (NoSchedule) of hosts: only Pods of
	// hypervisors run there, and they run nowhere else.
	HostKey = "vm.metropolis.monogon.dev/host"

	// AnnotationAddresses has the addresses of a VirtualMachine without spec.vmIPs,
	// separated by commas. It is written once, before the first Pod is created.
	AnnotationAddresses = "vm.metropolis.monogon.dev/addresses"
)

// Types of conditions. See also ConditionReady.
const (
	// ConditionScheduled reports whether the authoritative Pod has a node. It is False
	// with reason ReasonUnschedulable while no host has room.
	ConditionScheduled = "Scheduled"
)

// Reasons of conditions that programs act upon.
const (
	// ReasonUnschedulable is the reason of ConditionScheduled when no host has room for
	// the VM. The message is the scheduler's.
	ReasonUnschedulable = "Unschedulable"
)
