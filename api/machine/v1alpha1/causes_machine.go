package v1alpha1

// Annotations of events on Machines and their nodes. A message is for people and may change;
// programs read these. MCM writes none of them.
const (
	// EventAnnotationCause holds why the event was written: one of the causes below.
	EventAnnotationCause = "machine.millwright.dev/cause"
	// EventAnnotationMethod holds the driver's method that failed, as in "CreateMachine". It is
	// set with the cause DriverFailed only.
	EventAnnotationMethod = "machine.millwright.dev/method"
	// EventAnnotationCode holds the name of the driver's error code, as in "Internal". It is
	// set with the cause DriverFailed only.
	EventAnnotationCode = "machine.millwright.dev/code"
	// EventAnnotationStep holds the step of a deletion at which the event was written: one of
	// the steps below. It is set on events of deletions only.
	EventAnnotationStep = "machine.millwright.dev/deletion-step"
)

// Causes of events on Machines.
const (
	// CauseInvalidSpec: a field of the Machine is not valid.
	CauseInvalidSpec = "InvalidSpec"
	// CauseInvalidClassInputs: the class, a Secret or one of its keys is missing or not valid.
	CauseInvalidClassInputs = "InvalidClassInputs"
	// CauseBootstrapFailed: the user data of the VM could not be prepared.
	CauseBootstrapFailed = "BootstrapFailed"
	// CauseDriverFailed: a call to the driver failed. The annotations EventAnnotationMethod and
	// EventAnnotationCode say which, and how.
	CauseDriverFailed = "DriverFailed"
	// CauseDriverSilent: a call to the driver does not come back.
	CauseDriverSilent = "DriverSilent"
	// CauseInstanceOwned: the VM that the driver found is another object's.
	CauseInstanceOwned = "InstanceOwned"
	// CauseInstanceShared: the VM of a Machine that is being deleted is also named by another
	// object that stays.
	CauseInstanceShared = "InstanceShared"
	// CauseInstanceExists: the driver was asked to delete the VM, and still finds it.
	CauseInstanceExists = "InstanceExists"
	// CauseNodeNameTaken: a node that is older than the Machine has the name of its node.
	CauseNodeNameTaken = "NodeNameTaken"
	// CauseInstanceLost: the driver does not find the VM any more.
	CauseInstanceLost = "InstanceLost"
	// CauseNodeMissing: the node is not there any more.
	CauseNodeMissing = "NodeMissing"
	// CauseNodeUnhealthy: a condition of the node is not as it should be.
	CauseNodeUnhealthy = "NodeUnhealthy"
	// CauseCreationTimeout: the Machine did not join within its creation timeout.
	CauseCreationTimeout = "CreationTimeout"
	// CauseHealthTimeout: the Machine was unhealthy for longer than its health timeout.
	CauseHealthTimeout = "HealthTimeout"
	// CauseReplacementDelayed: the Machine would be Failed, but others of its pool are replaced
	// first.
	CauseReplacementDelayed = "ReplacementDelayed"
	// CauseNodeDeleted: somebody deleted the node, so the Machine is deleted.
	CauseNodeDeleted = "NodeDeleted"
	// CauseTargetUnavailable: the cluster of the nodes does not answer.
	CauseTargetUnavailable = "TargetUnavailable"
	// CauseDrainFailed: something went wrong with a drain, which is tried again.
	CauseDrainFailed = "DrainFailed"
	// CauseDrainForced: pods were deleted without regard to their budgets.
	CauseDrainForced = "DrainForced"
)

// Steps of a deletion, in their order.
const (
	// StepIdentify: it is found out which VM is to be deleted, and whether it is this Machine's
	// alone.
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
