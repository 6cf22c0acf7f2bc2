package v1alpha1

// MachineSetSelectorOverlap is the type, and the reason, of a condition that is True while another
// set selects the same Machines. MCM does not have it.
const MachineSetSelectorOverlap MachineSetConditionType = "SelectorOverlap"

// Reasons of the condition MachineSetReplicaFailure.
const (
	// MachineSetReasonFailedCreate: a Machine could not be created. As in MCM.
	MachineSetReasonFailedCreate = "FailedCreate"
	// MachineSetReasonFailedDelete: a Machine could not be deleted. As in MCM.
	MachineSetReasonFailedDelete = "FailedDelete"
	// MachineSetReasonFailedAdopt: a Machine could not be adopted or released.
	MachineSetReasonFailedAdopt = "FailedAdopt"
	// MachineSetReasonFailedUpdate: a Machine could not be updated from the template.
	MachineSetReasonFailedUpdate = "FailedUpdate"
	// MachineSetReasonInvalidSpec: a field of the set is not valid. Nothing is done for it.
	MachineSetReasonInvalidSpec = "InvalidSpec"
)

// MachineSetReasonOvershoot is the reason of the condition MachineSetFrozen: far more Machines
// exist than are wanted. As in MCM.
const MachineSetReasonOvershoot = "OverShootingReplicaCount"
