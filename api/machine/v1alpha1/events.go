package v1alpha1

// Annotations of events, for programs: messages are for people and may change. MCM does not write these
// annotations.
const (
	// EventAnnotationCause holds one of the causes below.
	EventAnnotationCause = "machine.millwright.dev/cause"
	// EventAnnotationMethod holds the driver method that failed, such as "CreateMachine". It is set only with
	// the cause DriverFailed.
	EventAnnotationMethod = "machine.millwright.dev/method"
	// EventAnnotationCode holds the name of the driver's error code, such as "Internal". It is set only with
	// the cause DriverFailed.
	EventAnnotationCode = "machine.millwright.dev/code"
	// EventAnnotationStep holds one of the steps below. It is set only on events of deletions.
	EventAnnotationStep = "machine.millwright.dev/deletion-step"
	// EventAnnotationObjects names the Machines or MachineSets that an event is about, separated by commas. If
	// there are many, only some are named.
	EventAnnotationObjects = "machine.millwright.dev/objects"
	// EventAnnotationUntil holds the time until which the object waits, as in RFC 3339.
	EventAnnotationUntil = "machine.millwright.dev/until"
)

// Causes of events on Machines.
const (
	// CauseInvalidSpec means that a field of the Machine is not valid.
	CauseInvalidSpec = "InvalidSpec"
	// CauseInvalidClassInputs means that the class, a Secret or one of its keys is missing or not valid.
	CauseInvalidClassInputs = "InvalidClassInputs"
	// CauseBootstrapFailed means that the user data of the VM could not be prepared.
	CauseBootstrapFailed = "BootstrapFailed"
	// CauseDriverFailed means that a call to the driver failed; see EventAnnotationMethod and EventAnnotationCode.
	CauseDriverFailed = "DriverFailed"
	// CauseDriverSilent means that a call to the driver does not return.
	CauseDriverSilent = "DriverSilent"
	// CauseInstanceOwned means that the VM that the driver found belongs to another object.
	CauseInstanceOwned = "InstanceOwned"
	// CauseInstanceShared means that another object that is not being deleted also names the VM of a Machine that is.
	CauseInstanceShared = "InstanceShared"
	// CauseInstanceExists means that the driver was called to delete the VM, and still finds it.
	CauseInstanceExists = "InstanceExists"
	// CauseInstanceElsewhere means that the driver finds no VM, and now searches in a different place than where its
	// creation began.
	CauseInstanceElsewhere = "InstanceElsewhere"
	// CauseUpdatePending means that the VM does not match its class yet and is being updated.
	CauseUpdatePending = "UpdatePending"
	// CauseReplacementNeeded means that the VM differs from its class in a way that requires a new VM.
	CauseReplacementNeeded = "ReplacementNeeded"
	// CauseInvalidUpdateStrategy means that an annotation names an unknown update strategy.
	CauseInvalidUpdateStrategy = "InvalidUpdateStrategy"
	// CauseNodeNameTaken means that a node that does not belong to the VM already has the name of its node.
	CauseNodeNameTaken = "NodeNameTaken"
	// CauseInstanceLost means that the driver no longer finds the VM.
	CauseInstanceLost = "InstanceLost"
	// CauseNodeMissing means that the node no longer exists.
	CauseNodeMissing = "NodeMissing"
	// CauseNodeUnhealthy means that a condition of the node makes it unhealthy.
	CauseNodeUnhealthy = "NodeUnhealthy"
	// CauseCreationTimeout means that the Machine did not join within its creation timeout.
	CauseCreationTimeout = "CreationTimeout"
	// CauseHealthTimeout means that the Machine was unhealthy for longer than its health timeout.
	CauseHealthTimeout = "HealthTimeout"
	// CauseReplacementDelayed means that the Machine becomes Failed only after other Machines of its pool have been
	// replaced.
	CauseReplacementDelayed = "ReplacementDelayed"
	// CauseZoneOutage means that all Machines of a zone are unhealthy. The pool waits for the zone or replaces them in
	// other zones.
	CauseZoneOutage = "ZoneOutage"
	// CauseNodeDeleted means that the node was deleted, so the Machine is deleted.
	CauseNodeDeleted = "NodeDeleted"
	// CauseTargetUnavailable means that the target cluster does not respond.
	CauseTargetUnavailable = "TargetUnavailable"
	// CauseDrainFailed means that a drain failed and is retried.
	CauseDrainFailed = "DrainFailed"
	// CauseDrainForced means that Pods were deleted regardless of their disruption budgets.
	CauseDrainForced = "DrainForced"
	// CauseNoCapacity means that the Machine gets a fallback class because its first choice has no capacity left.
	CauseNoCapacity = "NoCapacity"
	// CauseZoneSpread means that the Machine gets a fallback class because that class's zone has fewer machines.
	CauseZoneSpread = "ZoneSpread"
	// CauseCapacityBack means that a class has capacity again.
	CauseCapacityBack = "CapacityBack"
	// CauseUnfitClass means that a fallback class cannot be used.
	CauseUnfitClass = "UnfitClass"
)

// Causes of events on MachineSets and MachineDeployments.
const (
	// CauseMachineFailed means that the set deletes Machines that failed, or waits because of them.
	CauseMachineFailed = "MachineFailed"
	// CauseNamedForDeletion means that the set deletes Machines that were named for deletion, normally by an autoscaler.
	CauseNamedForDeletion = "NamedForDeletion"
	// CauseSurplus means that the set deletes Machines because more exist than desired.
	CauseSurplus = "Surplus"
	// CauseOwnerDeleted means that the set deletes its Machines because it is being deleted.
	CauseOwnerDeleted = "OwnerDeleted"
	// CauseScaledUp and CauseScaledDown mean that the deployment changes the number of replicas of a set.
	CauseScaledUp   = "ScaledUp"
	CauseScaledDown = "ScaledDown"
)

// Steps of a deletion, in their order.
const (
	// StepIdentify: looks up the VM and checks that it belongs to this Machine alone.
	StepIdentify = "Identify"
	// StepDrain: drains the node.
	StepDrain = "Drain"
	// StepDeleteAttachments: detaches the volumes of a node whose drain was forced.
	StepDeleteAttachments = "DeleteAttachments"
	// StepDeleteInstance: the driver deletes the VM.
	StepDeleteInstance = "DeleteInstance"
	// StepDeleteNode: deletes the Node object after the VM is gone.
	StepDeleteNode = "DeleteNode"
)
