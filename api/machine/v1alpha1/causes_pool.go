package v1alpha1

// Further annotations of events on MachineSets and MachineDeployments. Their
// EventAnnotationCause is one of the causes below; MCM writes none of them.
const (
	// EventAnnotationObjects names the Machines or MachineSets that an event is about, separated
	// by commas. Of many only some are named.
	EventAnnotationObjects = "machine.millwright.dev/objects"
	// EventAnnotationUntil holds when the wait that an event is about ends, as in RFC 3339.
	EventAnnotationUntil = "machine.millwright.dev/until"
)

// Causes of events on MachineSets and MachineDeployments.
const (
	// CauseMachineFailed: the set deletes Machines that failed, or waits since they do.
	CauseMachineFailed = "MachineFailed"
	// CauseNamedForDeletion: the set deletes Machines that were chosen by name, normally by an
	// autoscaler.
	CauseNamedForDeletion = "NamedForDeletion"
	// CauseSurplus: the set deletes Machines since more exist than it wants.
	CauseSurplus = "Surplus"
	// CauseOwnerDeleted: the set deletes its Machines since it is being deleted itself.
	CauseOwnerDeleted = "OwnerDeleted"
	// CauseScaledUp and CauseScaledDown: the deployment changes how many Machines a set wants.
	CauseScaledUp   = "ScaledUp"
	CauseScaledDown = "ScaledDown"
)
