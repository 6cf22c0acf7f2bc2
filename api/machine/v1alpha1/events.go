package v1alpha1

// Annotations of events, for programs: messages are for people and may change. MCM writes none of them.
const (
	// EventAnnotationCause holds one of the causes below.
	EventAnnotationCause = "machine.millwright.dev/cause"
	// EventAnnotationMethod holds the driver's method that failed, as in "CreateMachine". It is
	// set with the cause DriverFailed only.
	EventAnnotationMethod = "machine.millwright.dev/method"
	// EventAnnotationCode holds the name of the driver's error code, as in "Internal". It is
	// set with the cause DriverFailed only.
	EventAnnotationCode = "machine.millwright.dev/code"
	// EventAnnotationStep holds one of the steps below. It is set on events of deletions only.
	EventAnnotationStep = "machine.millwright.dev/deletion-step"
	// EventAnnotationObjects names the Machines or MachineSets that an event is about, separated
	// by commas. Of many only some are named.
	EventAnnotationObjects = "machine.millwright.dev/objects"
	// EventAnnotationUntil holds when the wait that an event is about ends, as in RFC 3339.
	EventAnnotationUntil = "machine.millwright.dev/until"
)

// Causes of events on Machines.
const (
	// CauseInvalidSpec: a field of the Machine is not valid.
	CauseInvalidSpec = "InvalidSpec"
	// CauseInvalidClassInputs: the class, a Secret or one of its keys is missing or not valid.
	CauseInvalidClassInputs = "InvalidClassInputs"
	// CauseBootstrapFailed: the user data of the VM could not be prepared.
	CauseBootstrapFailed = "BootstrapFailed"
	// CauseDriverFailed: a call to the driver failed; see EventAnnotationMethod and EventAnnotationCode.
	CauseDriverFailed = "DriverFailed"
	// CauseDriverSilent: a call to the driver does not return.
	CauseDriverSilent = "DriverSilent"
	// CauseInstanceOwned: the VM that the driver found is another object's.
	CauseInstanceOwned = "InstanceOwned"
	// CauseInstanceShared: the VM of a Machine that is being deleted is also named by another
	// object that stays.
	CauseInstanceShared = "InstanceShared"
	// CauseInstanceExists: the driver was asked to delete the VM, and still finds it.
	CauseInstanceExists = "InstanceExists"
	// CauseInstanceElsewhere: the driver finds no VM, and looks elsewhere than where its creation began.
	CauseInstanceElsewhere = "InstanceElsewhere"
	// CauseUpdatePending: the VM is not yet as its class says, and is being updated.
	CauseUpdatePending = "UpdatePending"
	// CauseReplacementNeeded: the VM differs from its class in what only a new VM can have.
	CauseReplacementNeeded = "ReplacementNeeded"
	// CauseInvalidUpdateStrategy: nobody knows the update strategy that an annotation names.
	CauseInvalidUpdateStrategy = "InvalidUpdateStrategy"
	// CauseNodeNameTaken: a node that is not the VM's has the name of its node.
	CauseNodeNameTaken = "NodeNameTaken"
	// CauseInstanceLost: the driver does not find the VM any more.
	CauseInstanceLost = "InstanceLost"
	// CauseNodeMissing: the node does not exist any more.
	CauseNodeMissing = "NodeMissing"
	// CauseNodeUnhealthy: a condition of the node makes it unhealthy.
	CauseNodeUnhealthy = "NodeUnhealthy"
	// CauseCreationTimeout: the Machine did not join within its creation timeout.
	CauseCreationTimeout = "CreationTimeout"
	// CauseHealthTimeout: the Machine was unhealthy for longer than its health timeout.
	CauseHealthTimeout = "HealthTimeout"
	// CauseReplacementDelayed: the Machine becomes Failed after others of its pool are replaced.
	CauseReplacementDelayed = "ReplacementDelayed"
	// CauseZoneOutage: all Machines of a zone are unhealthy. They wait for it, or others are made elsewhere.
	CauseZoneOutage = "ZoneOutage"
	// CauseNodeDeleted: the node was deleted, so the Machine is deleted.
	CauseNodeDeleted = "NodeDeleted"
	// CauseTargetUnavailable: the cluster of the nodes does not answer.
	CauseTargetUnavailable = "TargetUnavailable"
	// CauseDrainFailed: a drain failed and is tried again.
	CauseDrainFailed = "DrainFailed"
	// CauseDrainForced: pods were deleted without regard to their budgets.
	CauseDrainForced = "DrainForced"
	// CauseNoCapacity: the Machine gets another class than the first choice, which has no capacity left.
	CauseNoCapacity = "NoCapacity"
	// CauseZoneSpread: the Machine gets another class than the first choice, as its zone has fewer machines.
	CauseZoneSpread = "ZoneSpread"
	// CauseCapacityBack: a class has capacity again.
	CauseCapacityBack = "CapacityBack"
	// CauseUnfitClass: a class that Machines fall back to cannot be taken.
	CauseUnfitClass = "UnfitClass"
)

// Causes of events on MachineSets and MachineDeployments.
const (
	// CauseMachineFailed: the set deletes Machines that failed, or waits since they do.
	CauseMachineFailed = "MachineFailed"
	// CauseNamedForDeletion: the set deletes Machines that, normally, an autoscaler named.
	CauseNamedForDeletion = "NamedForDeletion"
	// CauseSurplus: the set deletes Machines since more exist than it wants.
	CauseSurplus = "Surplus"
	// CauseOwnerDeleted: the set deletes its Machines since it is being deleted itself.
	CauseOwnerDeleted = "OwnerDeleted"
	// CauseScaledUp and CauseScaledDown: the deployment changes how many Machines a set wants.
	CauseScaledUp   = "ScaledUp"
	CauseScaledDown = "ScaledDown"
)

// Steps of a deletion, in their order.
const (
	// StepIdentify: the VM is looked up, and whether it belongs to this Machine alone.
	StepIdentify = "Identify"
	// StepDrain: the node is drained.
	StepDrain = "Drain"
	// StepDeleteAttachments: volumes are detached from a node that was drained by force.
	StepDeleteAttachments = "DeleteAttachments"
	// StepDeleteInstance: the driver deletes the VM.
	StepDeleteInstance = "DeleteInstance"
	// StepDeleteNode: the VM is gone, and the Node object is deleted.
	StepDeleteNode = "DeleteNode"
)
