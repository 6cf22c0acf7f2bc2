package v1alpha1

// The types of a deployment's conditions. A healthy deployment has Available and Progressing.
const (
	// MachineDeploymentAvailable says whether enough machines can be used.
	MachineDeploymentAvailable MachineDeploymentConditionType = "Available"
	// MachineDeploymentProgressing says how the rollout goes: True while it goes on and when it is
	// complete, False when something keeps it from going on, Unknown while it is paused.
	MachineDeploymentProgressing MachineDeploymentConditionType = "Progressing"
	// MachineDeploymentReplicaFailure says that something failed beside the rollout: a set cannot create
	// or delete machines, or cannot be scaled. Its reason is one below or that of the set.
	MachineDeploymentReplicaFailure MachineDeploymentConditionType = "ReplicaFailure"
	// MachineDeploymentFrozen says that a set creates nothing, since too many machines exist.
	MachineDeploymentFrozen MachineDeploymentConditionType = "Frozen"
	// MachineDeploymentSelectorOverlap says that other deployments select the same machines. MCM does
	// not know it.
	MachineDeploymentSelectorOverlap MachineDeploymentConditionType = "SelectorOverlap"
	// MachineDeploymentSetReleased says that sets with machines, which were the deployment's, do not
	// match its selector any more. MCM does not know it.
	MachineDeploymentSetReleased MachineDeploymentConditionType = "SetReleased"
	// MachineDeploymentRollbackRefused says that spec.rollbackTo named a revision that does not exist.
	// It stays until the next rollout. MCM does not know it.
	MachineDeploymentRollbackRefused MachineDeploymentConditionType = "RollbackRefused"
)

// Reasons of Available, which are MCM's.
const (
	// DeploymentReasonAvailable: at least as many machines are available as an update has to leave.
	DeploymentReasonAvailable = "MinimumReplicasAvailable"
	// DeploymentReasonUnavailable: fewer are.
	DeploymentReasonUnavailable = "MinimumReplicasUnavailable"
)

// Reasons of Progressing that are MCM's.
const (
	// DeploymentReasonUpdated: the rollout goes on.
	DeploymentReasonUpdated = "MachineSetUpdated"
	// DeploymentReasonComplete: all machines are of the current template and available. Scaling does
	// not change that, nor does the replacement of a machine.
	DeploymentReasonComplete = "NewMachineSetAvailable"
	// DeploymentReasonPaused: spec.paused is set.
	DeploymentReasonPaused = "DeploymentPaused"
	// DeploymentReasonResumed: spec.paused was taken back.
	DeploymentReasonResumed = "DeploymentResumed"
	// DeploymentReasonCreated: the set of a new template was created.
	DeploymentReasonCreated = "NewMachineSetCreated"
	// DeploymentReasonFound: an old set has become the current one again.
	DeploymentReasonFound = "FoundNewMachineSet"
	// DeploymentReasonTimedOut: there was no progress for spec.progressDeadlineSeconds. The rollout
	// goes on all the same.
	DeploymentReasonTimedOut = "ProgressDeadlineExceeded"
	// DeploymentReasonSetCreateError: the set of a new template cannot be created.
	DeploymentReasonSetCreateError = "MachineSetCreateError"
	// DeploymentReasonSelectsAll: the selector is empty and would select all machines.
	DeploymentReasonSelectsAll = "SelectingAll"
)

// Reasons of Progressing that MCM does not know.
const (
	// DeploymentReasonSetUpdateError: a write of the rollout failed. ReplicaFailure has it for writes
	// that are no matter of a rollout.
	DeploymentReasonSetUpdateError = "MachineSetUpdateError"
	// DeploymentReasonMutated: the API server would create a set with another template, mostly because
	// of a mutating webhook, so none is created.
	DeploymentReasonMutated = "TemplateMutated"
	// DeploymentReasonInvalid: the spec is invalid. The message names the field.
	DeploymentReasonInvalid = "InvalidSpec"
	// DeploymentReasonNotSupported: the template changed, and the strategy InPlaceUpdate is not
	// supported.
	DeploymentReasonNotSupported = "NotSupported"
)

// Reasons of other conditions.
const (
	// DeploymentReasonFrozen is the reason of Frozen. It is MCM's.
	DeploymentReasonFrozen = "MachineDeploymentStateSync"
	// DeploymentReasonMarkError is a reason of ReplicaFailure: a machine named for deletion cannot be
	// marked, so its set is not scaled down.
	DeploymentReasonMarkError = "MachineMarkError"
	// DeploymentReasonSelectorOverlap is the reason of SelectorOverlap.
	DeploymentReasonSelectorOverlap = "SelectorOverlap"
	// DeploymentReasonSetReleased is the reason of SetReleased.
	DeploymentReasonSetReleased = "SetReleased"
	// DeploymentReasonRevisionNotFound is the reason of RollbackRefused, and of the event. It is MCM's.
	DeploymentReasonRevisionNotFound = "DeploymentRollbackRevisionNotFound"
)

// Reasons of events alone. The first two are MCM's.
const (
	// DeploymentReasonRollback: the deployment was rolled back.
	DeploymentReasonRollback = "DeploymentRollback"
	// DeploymentReasonTemplateUnchanged: the revision to roll back to has the same template.
	DeploymentReasonTemplateUnchanged = "DeploymentRollbackTemplateUnchanged"
	// DeploymentReasonNodesMarked: nodes of old machines were tainted.
	DeploymentReasonNodesMarked = "NodesMarked"
	// DeploymentReasonNodesUnmarked: nodes lost the marks of a rollout that is over.
	DeploymentReasonNodesUnmarked = "NodesUnmarked"
)
