package budget

import "github.com/millwright-dev/millwright/api/machine/v1alpha1"

// Role is the role of a Machine in the replacements of its pool.
type Role int

const (
	// Staying is the role of a Machine that is not being replaced.
	Staying Role = iota
	// Outgoing is the role of a Machine that is being replaced.
	Outgoing
	// Incoming is the role of a Machine that may replace another one.
	Incoming
)

// RoleOf returns the role of a Machine. A Machine that cannot be created is not incoming, because waiting for
// it would not help.
func RoleOf(machine *v1alpha1.Machine) Role {
	switch status := &machine.Status.CurrentStatus; {
	case status.PreserveExpiryTime != nil:
		return Staying
	case !machine.DeletionTimestamp.IsZero():
		return Outgoing
	default:
		return roleIn(status.Phase)
	}
}

func roleIn(phase v1alpha1.MachinePhase) Role {
	switch phase {
	case v1alpha1.MachineFailed, v1alpha1.MachineTerminating:
		return Outgoing
	case v1alpha1.MachineRunning, v1alpha1.MachineAvailable, v1alpha1.MachineCrashLoopBackOff,
		v1alpha1.MachineUnknown, v1alpha1.MachineInPlaceUpdateFailed:
		return Staying
	default:
		return Incoming
	}
}

// Unhealthy reports whether a Machine was healthy before and is not now.
func Unhealthy(machine *v1alpha1.Machine) bool {
	return machine.Status.CurrentStatus.Phase == v1alpha1.MachineFailed || MayTimeOut(machine.Status.CurrentStatus.Phase)
}

// Joined reports whether a Machine has a node, according to its phase.
func Joined(machine *v1alpha1.Machine) bool {
	switch machine.Status.CurrentStatus.Phase {
	case "", v1alpha1.MachinePending, v1alpha1.MachineCrashLoopBackOff, v1alpha1.MachineTerminating:
		return false
	}
	return true
}

// MayTimeOut reports whether the health timeout applies to Machines in this phase.
func MayTimeOut(phase v1alpha1.MachinePhase) bool {
	return phase == v1alpha1.MachineUnknown || phase == v1alpha1.MachineInPlaceUpdateFailed
}
