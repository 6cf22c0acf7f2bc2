package v1alpha1

const (
	// Finalizer holds a VirtualMachine until its hypervisor is gone, then its disk.
	Finalizer = "vm.metropolis.monogon.dev/vm-controller"

	// LabelVM is on Pods and claims of a VM. Its value is the VirtualMachine's name.
	LabelVM = "vm.metropolis.monogon.dev/name"

	// HostKey is the key of a label and a taint (NoSchedule) of nodes that run
	// hypervisors: only Pods of hypervisors go there, and they go nowhere else.
	HostKey = "vm.metropolis.monogon.dev/host"

	// AnnotationAddresses is on a VirtualMachine that asks for no addresses of its own:
	// what it was given, separated by commas. It is written once, before the first Pod.
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
