package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// MachineDeployment keeps a number of machines and replaces them according to its strategy when their template
// changes.
//
// +genclient
// +genclient:method=GetScale,verb=get,subresource=scale,result=k8s.io/api/autoscaling/v1.Scale
// +genclient:method=UpdateScale,verb=update,subresource=scale,input=k8s.io/api/autoscaling/v1.Scale,result=k8s.io/api/autoscaling/v1.Scale
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=mcd,categories={mcm,millwright}
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.selector
// +kubebuilder:printcolumn:name="Ready",type=integer,JSONPath=`.status.readyReplicas`,description="Number of machines whose node is healthy"
// +kubebuilder:printcolumn:name="Desired",type=integer,JSONPath=`.spec.replicas`,description="Number of desired machines"
// +kubebuilder:printcolumn:name="Up-to-date",type=integer,JSONPath=`.status.updatedReplicas`,description="Number of machines created from the current template"
// +kubebuilder:printcolumn:name="Available",type=integer,JSONPath=`.status.availableReplicas`,description="Number of machines that can be used"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`,description="Time since the object was created"
type MachineDeployment struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// Spec is the desired state of the deployment.
	// +optional
	Spec MachineDeploymentSpec `json:"spec,omitempty"`
	// Status is the observed state of the deployment.
	// +optional
	Status MachineDeploymentStatus `json:"status,omitempty"`
}

// MachineDeploymentList is a list of MachineDeployments.
//
// +kubebuilder:object:root=true
type MachineDeploymentList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []MachineDeployment `json:"items"`
}

// MachineDeploymentSpec is the desired state of a deployment.
type MachineDeploymentSpec struct {
	// Replicas is the desired number of machines. Defaults to 0.
	// +optional
	Replicas int32 `json:"replicas,omitempty"`
	// Selector selects the sets and machines of the deployment. It must match the template's labels.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
	// Template of the machines.
	Template MachineTemplateSpec `json:"template"`
	// Strategy determines how machines are replaced when the template changes.
	// +optional
	Strategy MachineDeploymentStrategy `json:"strategy,omitempty"`
	// MinReadySeconds is how long a machine must be ready before it counts as available.
	// +optional
	MinReadySeconds int32 `json:"minReadySeconds,omitempty"`
	// RevisionHistoryLimit is the number of old sets that are kept for rollbacks. If unset, all are kept.
	// +optional
	RevisionHistoryLimit *int32 `json:"revisionHistoryLimit,omitempty"`
	// Paused stops rollouts. Scaling continues.
	// +optional
	Paused bool `json:"paused,omitempty"`
	// RollbackTo requests a rollback to an earlier revision. The controller clears it when done.
	// +optional
	RollbackTo *RollbackConfig `json:"rollbackTo,omitempty"`
	// ProgressDeadlineSeconds is the time without progress after which a rollout is reported as stalled. If
	// unset, stalled rollouts are not reported.
	// +optional
	ProgressDeadlineSeconds *int32 `json:"progressDeadlineSeconds,omitempty"`
	// AutoPreserveFailedMachineMax is the maximum number of failed machines that are preserved automatically.
	// +optional
	AutoPreserveFailedMachineMax int32 `json:"autoPreserveFailedMachineMax,omitempty"`
	// ExcessReplicas is the number of machines, or the percentage of replicas (rounded up), that are kept in
	// reserve in addition to the replicas. These are the newest machines; no Pods are scheduled on their nodes
	// until the replicas grow. If unset, there is no reserve. MCM's CRDs do not have this field; with them, use
	// the annotation machine.millwright.dev/excess-replicas.
	// +kubebuilder:validation:XValidation:rule="type(self) == string || int(self) >= 0",message="must not be below zero"
	// +kubebuilder:validation:XValidation:rule="type(self) == string || int(self) < 2147483648",message="must fit into 32 bits"
	// +kubebuilder:validation:XValidation:rule="type(self) == int || string(self).matches('^[0-9]{1,9}%$')",message="must be a number or a percentage such as 20%"
	// +kubebuilder:validation:XValidation:rule="type(self) == int || !string(self).matches('^[0-9]{1,9}%$') || int(string(self).replace('%', '')) <= 100",message="must not be above 100%"
	// +optional
	ExcessReplicas *intstr.IntOrString `json:"excessReplicas,omitempty"`
	// FallbackClasses are the names of MachineClasses that are used, in this order, while the class of the
	// template has no capacity left. They have the same provider, and usually another zone or instance type.
	// MCM's CRDs do not have this field; with them, use the annotation machine.millwright.dev/fallback-classes.
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=atomic
	// +optional
	FallbackClasses []string `json:"fallbackClasses,omitempty"`
	// Replacement limits how many unhealthy machines are replaced. If unset, the manager's flag
	// --machine-max-health-replacements applies. MCM's CRDs do not have this field; with them, use the
	// annotation machine.millwright.dev/replacement.
	// +optional
	Replacement *ReplacementPolicy `json:"replacement,omitempty"`
}

// ReplacementPolicy limits how many machines of a deployment become Failed and are replaced after they were
// unhealthy for longer than their health timeout. It does not limit machines that never joined.
type ReplacementPolicy struct {
	// Budgets must all allow a replacement. If empty, the manager's flag --machine-max-health-replacements
	// applies.
	// +kubebuilder:validation:MaxItems=8
	// +listType=atomic
	// +optional
	Budgets []ReplacementBudget `json:"budgets,omitempty"`
	// ZoneOutage determines what happens when a zone has two or more machines and all of them are unhealthy:
	// "Wait" waits until the zone recovers; "Replace" replaces the machines in other zones, immediately unless
	// a budget prevents it. If empty, zones are ignored, as in MCM.
	// +kubebuilder:validation:Enum=Wait;Replace
	// +optional
	ZoneOutage ZoneOutagePolicy `json:"zoneOutage,omitempty"`
}

// ReplacementBudget limits how many machines of a group may be replaced.
type ReplacementBudget struct {
	// Max is a number of machines, or a percentage of the group, rounded down but at least 1. With 0 or 0%, no
	// machine is replaced.
	// +kubebuilder:validation:XValidation:rule="type(self) == string || (int(self) >= 0 && int(self) < 2147483648)",message="must be a non-negative number"
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:Pattern=`^(100|[0-9]{1,2})%$`
	Max intstr.IntOrString `json:"max"`
	// Per is the key of a label of the machines or their nodes, such as topology.kubernetes.io/zone. Machines
	// with the same value form a group. If empty, all machines of the deployment form one group.
	// +kubebuilder:validation:MaxLength=317
	// +optional
	Per string `json:"per,omitempty"`
	// Within is the period, such as 1h and at most 24h, in which at most Max machines become Failed. If unset,
	// Max limits how many machines are replaced at the same time.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^([0-9]{1,9}(s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s') && duration(self) <= duration('24h')",message="must be above zero, and at most 24h"
	// +kubebuilder:validation:MaxLength=32
	// +optional
	Within *metav1.Duration `json:"within,omitempty"`
}

// ZoneOutagePolicy determines what happens to the machines of a zone in which all machines are unhealthy.
type ZoneOutagePolicy string

const (
	// ZoneOutageWait waits until the zone recovers.
	ZoneOutageWait ZoneOutagePolicy = "Wait"
	// ZoneOutageReplace replaces the machines with others in the zones of the fallback classes.
	ZoneOutageReplace ZoneOutagePolicy = "Replace"
)

// RollbackConfig names the revision to roll back to.
type RollbackConfig struct {
	// Revision to roll back to. 0 is the previous revision.
	// +optional
	Revision int64 `json:"revision,omitempty"`
}

// MachineDeploymentStrategyType is a way of replacing machines.
type MachineDeploymentStrategyType string

// The ways of replacing machines.
const (
	// RecreateMachineDeploymentStrategyType deletes all old machines, then creates the new ones.
	RecreateMachineDeploymentStrategyType MachineDeploymentStrategyType = "Recreate"
	// RollingUpdateMachineDeploymentStrategyType replaces machines a few at a time.
	RollingUpdateMachineDeploymentStrategyType MachineDeploymentStrategyType = "RollingUpdate"
	// InPlaceUpdateMachineDeploymentStrategyType updates the nodes and keeps their machines.
	InPlaceUpdateMachineDeploymentStrategyType MachineDeploymentStrategyType = "InPlaceUpdate"
)

// MachineDeploymentStrategy determines how machines are replaced.
type MachineDeploymentStrategy struct {
	// Type of the strategy: "Recreate" deletes all old machines, then creates new ones; "RollingUpdate"
	// replaces machines a few at a time; "InPlaceUpdate" updates the nodes and keeps their machines.
	// +optional
	Type MachineDeploymentStrategyType `json:"type,omitempty"`
	// RollingUpdate configures the strategy RollingUpdate.
	// +optional
	RollingUpdate *RollingUpdateMachineDeployment `json:"rollingUpdate,omitempty"`
	// InPlaceUpdate configures the strategy InPlaceUpdate.
	// +optional
	InPlaceUpdate *InPlaceUpdateMachineDeployment `json:"inPlaceUpdate,omitempty"`
}

// RollingUpdateMachineDeployment configures a rolling update.
type RollingUpdateMachineDeployment struct {
	UpdateConfiguration `json:",inline"`
}

// InPlaceUpdateMachineDeployment configures an in-place update.
type InPlaceUpdateMachineDeployment struct {
	UpdateConfiguration `json:",inline"`
	// OrchestrationType determines who selects the nodes to update: the controller ("Auto") or the user, by a
	// label ("Manual").
	// +optional
	OrchestrationType OrchestrationType `json:"orchestrationType,omitempty"`
}

// OrchestrationType determines who selects the nodes of an in-place update.
type OrchestrationType string

const (
	// OrchestrationTypeAuto lets the controller select the nodes.
	OrchestrationTypeAuto OrchestrationType = "Auto"
	// OrchestrationTypeManual waits for the user to label the nodes.
	OrchestrationTypeManual OrchestrationType = "Manual"
)

// UpdateConfiguration limits how many machines an update may add or take away at the same time.
type UpdateConfiguration struct {
	// MaxUnavailable is the number of machines, or the percentage of replicas (rounded down), that may be
	// unavailable during the update.
	// +kubebuilder:validation:XValidation:rule="type(self) == string || int(self) == int(self) % 2147483648",message="must fit into 32 bits"
	// +optional
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
	// MaxSurge is the number of machines, or the percentage of replicas (rounded up), that may exist in
	// addition to the replicas during the update.
	// +kubebuilder:validation:XValidation:rule="type(self) == string || int(self) == int(self) % 2147483648",message="must fit into 32 bits"
	// +optional
	MaxSurge *intstr.IntOrString `json:"maxSurge,omitempty"`
}

// DefaultMachineDeploymentUniqueLabelKey is the label that distinguishes the sets of a deployment and their
// machines.
const DefaultMachineDeploymentUniqueLabelKey = "machine-template-hash"

// MachineDeploymentStatus is the observed state of a deployment.
type MachineDeploymentStatus struct {
	// ObservedGeneration is the generation that this status belongs to.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Replicas is the number of machines that exist, including those being deleted. Machines in excess of the
	// replicas are not included, here and in the following numbers except unavailableReplicas; see
	// excessReplicas.
	// +optional
	Replicas int32 `json:"replicas,omitempty"`
	// UpdatedReplicas is the number of machines created from the current template.
	// +optional
	UpdatedReplicas int32 `json:"updatedReplicas,omitempty"`
	// ReadyReplicas is the number of Running machines.
	// +optional
	ReadyReplicas int32 `json:"readyReplicas,omitempty"`
	// AvailableReplicas is the number of machines that can be used.
	// +optional
	AvailableReplicas int32 `json:"availableReplicas,omitempty"`
	// PreservedFailedReplicas is the number of Failed machines that are preserved.
	// +optional
	PreservedFailedReplicas int32 `json:"preservedFailedReplicas,omitempty"`
	// UnavailableReplicas is the desired number of machines of all sets, minus the number of available machines.
	// +optional
	UnavailableReplicas int32 `json:"unavailableReplicas,omitempty"`
	// Conditions of the deployment.
	// +optional
	Conditions []MachineDeploymentCondition `json:"conditions,omitempty"`
	// CollisionCount counts how often the name of a new set was already taken.
	// +optional
	CollisionCount *int32 `json:"collisionCount,omitempty"`
	// FailedMachines are the machines whose last operation failed.
	// +optional
	FailedMachines []*MachineSummary `json:"failedMachines,omitempty"`
	// Selector is spec.selector as a string, for clients of the scale subresource such as the horizontal pod
	// autoscaler. MCM's CRDs do not have this field: a cluster with those CRDs prunes it, so nothing may depend
	// on it.
	// +optional
	Selector string `json:"selector,omitempty"`
	// ExcessReplicas is the number of machines that exist as a reserve in addition to the replicas. MCM's CRDs
	// do not have this field; nothing depends on it.
	// +optional
	ExcessReplicas int32 `json:"excessReplicas,omitempty"`
}

// MachineDeploymentConditionType is the type of a condition of a deployment.
type MachineDeploymentConditionType string

// The types of a deployment's conditions. A healthy deployment has Available and Progressing.
const (
	// MachineDeploymentAvailable means that enough machines can be used.
	MachineDeploymentAvailable MachineDeploymentConditionType = "Available"
	// MachineDeploymentProgressing is True while a rollout progresses and when it is complete, False when it
	// cannot progress, and Unknown while it is paused.
	MachineDeploymentProgressing MachineDeploymentConditionType = "Progressing"
	// MachineDeploymentReplicaFailure means that a set cannot create or delete machines, or cannot be scaled outside a
	// rollout. Its reason is one of those below or the reason of the set.
	MachineDeploymentReplicaFailure MachineDeploymentConditionType = "ReplicaFailure"
	// MachineDeploymentFrozen means that a set creates no machines because too many exist.
	MachineDeploymentFrozen MachineDeploymentConditionType = "Frozen"
	// MachineDeploymentSelectorOverlap means that another deployment selects the same machines. MCM does not have this
	// condition.
	MachineDeploymentSelectorOverlap MachineDeploymentConditionType = "SelectorOverlap"
	// MachineDeploymentSetReleased means that the selector no longer matches sets that were created for the deployment
	// and have machines. MCM does not have this condition.
	MachineDeploymentSetReleased MachineDeploymentConditionType = "SetReleased"
	// MachineDeploymentRollbackRefused means that spec.rollbackTo named a revision that does not exist. The condition
	// stays until the next rollout. MCM does not have it.
	MachineDeploymentRollbackRefused MachineDeploymentConditionType = "RollbackRefused"
)

// Reasons of Available, which are MCM's.
const (
	// DeploymentReasonAvailable means that at least as many machines are available as an update must keep.
	DeploymentReasonAvailable = "MinimumReplicasAvailable"
	// DeploymentReasonUnavailable means that fewer machines are available than an update must keep.
	DeploymentReasonUnavailable = "MinimumReplicasUnavailable"
)

// Reasons of Progressing that are MCM's.
const (
	// DeploymentReasonUpdated means that the rollout continues.
	DeploymentReasonUpdated = "MachineSetUpdated"
	// DeploymentReasonUpdateBlocked means that an in-place update needs a user: the update of a node failed, its labels
	// are wrong, or nodes must be selected.
	DeploymentReasonUpdateBlocked = "NodeUpdateBlocked"
	// DeploymentReasonDryRun means that the template names another class, and with the update strategy "DryRun" the
	// drivers of the machines report what an update to it would change. Nothing is changed.
	DeploymentReasonDryRun = "UpdateDryRun"
	// DeploymentReasonComplete means that all machines match the current template and are available. Scaling and the
	// replacement of a machine do not change this reason.
	DeploymentReasonComplete = "NewMachineSetAvailable"
	// DeploymentReasonAwaitingRestore means that the deployment or one of its sets was restored from a backup, and
	// that it waits for sets or Machines that are restored after it.
	DeploymentReasonAwaitingRestore = "AwaitingRestore"
	// DeploymentReasonPaused means that spec.paused is set.
	DeploymentReasonPaused = "DeploymentPaused"
	// DeploymentReasonResumed means that spec.paused was removed.
	DeploymentReasonResumed = "DeploymentResumed"
	// DeploymentReasonCreated means that the set of a new template was created.
	DeploymentReasonCreated = "NewMachineSetCreated"
	// DeploymentReasonFound means that an old set has become the current one again.
	DeploymentReasonFound = "FoundNewMachineSet"
	// DeploymentReasonTimedOut means that the rollout made no progress for spec.progressDeadlineSeconds. It continues.
	DeploymentReasonTimedOut = "ProgressDeadlineExceeded"
	// DeploymentReasonSetCreateError means that the set of a new template cannot be created.
	DeploymentReasonSetCreateError = "MachineSetCreateError"
	// DeploymentReasonSelectsAll means that the selector is empty and would select all machines.
	DeploymentReasonSelectsAll = "SelectingAll"
)

// Reasons of Progressing that MCM does not have.
const (
	// DeploymentReasonSetUpdateError means that a write of the rollout failed. For other writes, it is a reason of
	// ReplicaFailure.
	DeploymentReasonSetUpdateError = "MachineSetUpdateError"
	// DeploymentReasonMutated means that a mutating webhook changes the template of a new set, so no set is created.
	DeploymentReasonMutated = "TemplateMutated"
	// DeploymentReasonInvalid means that the spec is invalid. The message names the field.
	DeploymentReasonInvalid = "InvalidSpec"
	// DeploymentReasonNotSupported means that the template changed with the strategy InPlaceUpdate, and there is no
	// target cluster.
	DeploymentReasonNotSupported = "NotSupported"
)

// Reasons of other conditions.
const (
	// DeploymentReasonFrozen is the reason of Frozen, as in MCM.
	DeploymentReasonFrozen = "MachineDeploymentStateSync"
	// DeploymentReasonMarkError is a reason of ReplicaFailure: a machine named for deletion cannot be marked,
	// so its set is not scaled down.
	DeploymentReasonMarkError = "MachineMarkError"
	// DeploymentReasonSelectorOverlap is the reason of SelectorOverlap.
	DeploymentReasonSelectorOverlap = "SelectorOverlap"
	// DeploymentReasonSetReleased is the reason of SetReleased.
	DeploymentReasonSetReleased = "SetReleased"
	// DeploymentReasonRevisionNotFound is the reason of RollbackRefused and of the event, as in MCM.
	DeploymentReasonRevisionNotFound = "DeploymentRollbackRevisionNotFound"
)

// Reasons that only events have. The first two are MCM's.
const (
	// DeploymentReasonRollback means that the deployment was rolled back.
	DeploymentReasonRollback = "DeploymentRollback"
	// DeploymentReasonTemplateUnchanged means that the revision to roll back to has the same template.
	DeploymentReasonTemplateUnchanged = "DeploymentRollbackTemplateUnchanged"
	// DeploymentReasonNodesMarked means that nodes of old machines were tainted.
	DeploymentReasonNodesMarked = "NodesMarked"
	// DeploymentReasonMachineTransferred means that a machine that was updated in place moved to the current set.
	DeploymentReasonMachineTransferred = "MachineTransferred"
	// DeploymentReasonClassTaken means that a set got the class that the template names, since its machines can be
	// updated to it.
	DeploymentReasonClassTaken = "MachineClassTaken"
	// DeploymentReasonMachineFollows means that a machine got the class of its set, and its VM is updated.
	DeploymentReasonMachineFollows = "MachineFollowsClass"
	// DeploymentReasonNodesSelected means that nodes were selected to be updated in place.
	DeploymentReasonNodesSelected = "NodesSelected"
	// DeploymentReasonNodesUnmarked means that the marks of a completed rollout were removed from nodes.
	DeploymentReasonNodesUnmarked = "NodesUnmarked"
)

// MachineDeploymentCondition is a condition of a deployment.
type MachineDeploymentCondition struct {
	// Type of the condition: "Available", "Progressing", "ReplicaFailure", "Frozen", "SelectorOverlap",
	// "SetReleased" or "RollbackRefused".
	Type MachineDeploymentConditionType `json:"type"`
	// Status of the condition: "True", "False" or "Unknown".
	Status ConditionStatus `json:"status"`
	// LastUpdateTime is when the condition was last written.
	// +optional
	LastUpdateTime metav1.Time `json:"lastUpdateTime,omitzero"`
	// LastTransitionTime is when the status last changed.
	// +optional
	LastTransitionTime metav1.Time `json:"lastTransitionTime,omitzero"`
	// Reason is a machine-readable reason in CamelCase.
	// +optional
	Reason string `json:"reason,omitempty"`
	// Message explains the reason in a sentence.
	// +optional
	Message string `json:"message,omitempty"`
}
