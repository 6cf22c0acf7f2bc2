package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// MachineDeployment keeps a number of machines and replaces them, by its strategy,
// when their template changes.
//
// +genclient
// +genclient:method=GetScale,verb=get,subresource=scale,result=k8s.io/api/autoscaling/v1.Scale
// +genclient:method=UpdateScale,verb=update,subresource=scale,input=k8s.io/api/autoscaling/v1.Scale,result=k8s.io/api/autoscaling/v1.Scale
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=mcd
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.selector
// +kubebuilder:printcolumn:name="Ready",type=integer,JSONPath=`.status.readyReplicas`,description="Number of machines whose node is healthy"
// +kubebuilder:printcolumn:name="Desired",type=integer,JSONPath=`.spec.replicas`,description="Number of machines wanted"
// +kubebuilder:printcolumn:name="Up-to-date",type=integer,JSONPath=`.status.updatedReplicas`,description="Number of machines made from the current template"
// +kubebuilder:printcolumn:name="Available",type=integer,JSONPath=`.status.availableReplicas`,description="Number of machines that can be used"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`,description="Time since the object was created"
type MachineDeployment struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// Spec declares the deployment.
	// +optional
	Spec MachineDeploymentSpec `json:"spec,omitempty"`
	// Status is what is known of the deployment.
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

// MachineDeploymentSpec declares a deployment of machines.
type MachineDeploymentSpec struct {
	// Replicas is the number of machines wanted. Absent means 0.
	// +optional
	Replicas int32 `json:"replicas,omitempty"`
	// Selector finds the sets and machines of the deployment. It must match the template's labels.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
	// Template of the machines.
	Template MachineTemplateSpec `json:"template"`
	// Strategy by which machines are replaced when the template changes.
	// +optional
	Strategy MachineDeploymentStrategy `json:"strategy,omitempty"`
	// MinReadySeconds is the time for which a machine must be ready to count as available.
	// +optional
	MinReadySeconds int32 `json:"minReadySeconds,omitempty"`
	// RevisionHistoryLimit is the number of old sets that are kept to go back to.
	// Nil keeps all of them.
	// +optional
	RevisionHistoryLimit *int32 `json:"revisionHistoryLimit,omitempty"`
	// Paused stops rollouts; scaling goes on.
	// +optional
	Paused bool `json:"paused,omitempty"`
	// RollbackTo asks for a return to an earlier revision. It is cleared when done.
	// +optional
	RollbackTo *RollbackConfig `json:"rollbackTo,omitempty"`
	// ProgressDeadlineSeconds is the time without progress after which a rollout is
	// reported as stalled. Nil never reports that.
	// +optional
	ProgressDeadlineSeconds *int32 `json:"progressDeadlineSeconds,omitempty"`
	// AutoPreserveFailedMachineMax is the number of failed machines that are
	// preserved without being asked to.
	// +optional
	AutoPreserveFailedMachineMax int32 `json:"autoPreserveFailedMachineMax,omitempty"`
	// ExcessReplicas is how many machines, or what percentage of the replicas (rounded up), exist beyond
	// them as a reserve: the newest ones, on whose nodes no pods are scheduled until the replicas grow.
	// Nil is none. MCM's CRDs do not know this field, but see AnnotationKeyExcessReplicas.
	// +kubebuilder:validation:XValidation:rule="type(self) == string || int(self) >= 0",message="must not be below zero"
	// +kubebuilder:validation:XValidation:rule="type(self) == string || int(self) < 2147483648",message="must fit into 32 bits"
	// +kubebuilder:validation:XValidation:rule="type(self) == int || string(self).matches('^[0-9]{1,9}%$')",message="must be a number or a percentage such as 20%"
	// +kubebuilder:validation:XValidation:rule="type(self) == int || !string(self).matches('^[0-9]{1,9}%$') || int(string(self).replace('%', '')) <= 100",message="must not be above 100%"
	// +optional
	ExcessReplicas *intstr.IntOrString `json:"excessReplicas,omitempty"`
	// FallbackClasses are the names of MachineClasses with which machines are made while the class of the
	// template has no capacity left, the first choice first. They are of the same provider, mostly in other zones or
	// of other types. MCM's CRDs do not know this field, but see AnnotationKeyFallbackClasses.
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=atomic
	// +optional
	FallbackClasses []string `json:"fallbackClasses,omitempty"`
	// Replacement limits how many unhealthy machines are replaced. Nil leaves that to the manager's flag
	// --machine-max-health-replacements. MCM's CRDs do not know this field, but see AnnotationKeyReplacement.
	// +optional
	Replacement *ReplacementPolicy `json:"replacement,omitempty"`
}

// ReplacementPolicy limits how many machines of a deployment become Failed, and are replaced, once they
// are unhealthy for longer than their health timeout. Machines that never joined are not limited by it.
type ReplacementPolicy struct {
	// Budgets all have to allow a replacement. Without any, the manager's flag
	// --machine-max-health-replacements limits it.
	// +kubebuilder:validation:MaxItems=8
	// +listType=atomic
	// +optional
	Budgets []ReplacementBudget `json:"budgets,omitempty"`
	// ZoneOutage is what becomes of two or more machines that are all there is in a zone, and all
	// unhealthy: Wait until the zone is back, or Replace them in other zones, at once unless a budget
	// forbids it. Empty means that zones do not matter, as in MCM.
	// +kubebuilder:validation:Enum=Wait;Replace
	// +optional
	ZoneOutage ZoneOutagePolicy `json:"zoneOutage,omitempty"`
}

// ReplacementBudget is how many machines of a group may be replaced.
type ReplacementBudget struct {
	// Max is a number of machines, or a percentage of the group, rounded down, and at least 1. With 0 or 0%,
	// none is replaced.
	// +kubebuilder:validation:XValidation:rule="type(self) == string || (int(self) >= 0 && int(self) < 2147483648)",message="must be a number that is not below zero"
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:Pattern=`^(100|[0-9]{1,2})%$`
	Max intstr.IntOrString `json:"max"`
	// Per is the key of a label of the machines or their nodes, such as topology.kubernetes.io/zone: those
	// with the same value are a group. Empty means that all machines of the deployment are one group.
	// +kubebuilder:validation:MaxLength=317
	// +optional
	Per string `json:"per,omitempty"`
	// Within is the time in which no more than Max become Failed, such as 1h, at most a day. Nil limits
	// how many are replaced at the same time.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^([0-9]{1,9}(s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s') && duration(self) <= duration('24h')",message="must be above zero, and at most 24h"
	// +kubebuilder:validation:MaxLength=32
	// +optional
	Within *metav1.Duration `json:"within,omitempty"`
}

// ZoneOutagePolicy is what becomes of the machines of a zone in which all are unhealthy.
type ZoneOutagePolicy string

const (
	// ZoneOutageWait waits until the zone is back.
	ZoneOutageWait ZoneOutagePolicy = "Wait"
	// ZoneOutageReplace replaces the machines by others in the zones of the fallback classes.
	ZoneOutageReplace ZoneOutagePolicy = "Replace"
)

// RollbackConfig names the revision to return to.
type RollbackConfig struct {
	// Revision to return to. 0 is the one before the current.
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

// MachineDeploymentStrategy is how machines are replaced.
type MachineDeploymentStrategy struct {
	// Type of the strategy.
	// +optional
	Type MachineDeploymentStrategyType `json:"type,omitempty"`
	// RollingUpdate belongs to the type RollingUpdate.
	// +optional
	RollingUpdate *RollingUpdateMachineDeployment `json:"rollingUpdate,omitempty"`
	// InPlaceUpdate belongs to the type InPlaceUpdate.
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
	// OrchestrationType says who picks the nodes to update.
	// +optional
	OrchestrationType OrchestrationType `json:"orchestrationType,omitempty"`
}

// OrchestrationType says who picks the nodes of an in-place update.
type OrchestrationType string

const (
	// OrchestrationTypeAuto lets the controller pick the nodes.
	OrchestrationTypeAuto OrchestrationType = "Auto"
	// OrchestrationTypeManual waits for the user to label them.
	OrchestrationTypeManual OrchestrationType = "Manual"
)

// UpdateConfiguration bounds how many machines an update may add or take at once.
type UpdateConfiguration struct {
	// MaxUnavailable is how many machines, or what percentage (rounded down), may be
	// missing during the update.
	// +kubebuilder:validation:XValidation:rule="type(self) == string || int(self) == int(self) % 2147483648",message="must fit into 32 bits"
	// +optional
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
	// MaxSurge is how many machines, or what percentage (rounded up), may exist
	// beyond the wanted number during the update.
	// +kubebuilder:validation:XValidation:rule="type(self) == string || int(self) == int(self) % 2147483648",message="must fit into 32 bits"
	// +optional
	MaxSurge *intstr.IntOrString `json:"maxSurge,omitempty"`
}

// DefaultMachineDeploymentUniqueLabelKey is the label by which the sets of a
// deployment, and their machines, differ.
const DefaultMachineDeploymentUniqueLabelKey = "machine-template-hash"

// MachineDeploymentStatus is what is known of a deployment.
type MachineDeploymentStatus struct {
	// ObservedGeneration is the generation that this status belongs to.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Replicas is the number of machines that exist, those being deleted included. Those in excess of
	// the replicas are counted apart, here and in the next numbers but UnavailableReplicas: see ExcessReplicas.
	// +optional
	Replicas int32 `json:"replicas,omitempty"`
	// UpdatedReplicas is the number of machines made from the current template.
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
	// UnavailableReplicas is the number of machines that are wanted by the sets and cannot be used.
	// +optional
	UnavailableReplicas int32 `json:"unavailableReplicas,omitempty"`
	// Conditions of the deployment.
	// +optional
	Conditions []MachineDeploymentCondition `json:"conditions,omitempty"`
	// CollisionCount counts how often the name of a new set was taken.
	// +optional
	CollisionCount *int32 `json:"collisionCount,omitempty"`
	// FailedMachines are the machines whose last operation failed.
	// +optional
	FailedMachines []*MachineSummary `json:"failedMachines,omitempty"`
	// Selector is spec.selector written as a string, for clients of the scale
	// subresource such as the horizontal pod autoscaler. MCM's CRDs do not know this
	// field: a cluster that runs with them prunes it, so nothing may depend on it.
	// +optional
	Selector string `json:"selector,omitempty"`
	// ExcessReplicas is the number of machines that exist as a reserve in excess of the replicas. MCM's
	// CRDs do not know this field; nothing depends on it.
	// +optional
	ExcessReplicas int32 `json:"excessReplicas,omitempty"`
}

// MachineDeploymentConditionType is the type of a condition of a deployment.
type MachineDeploymentConditionType string

// The types of a deployment's conditions. A healthy deployment has Available and Progressing.
const (
	// MachineDeploymentAvailable: enough machines can be used.
	MachineDeploymentAvailable MachineDeploymentConditionType = "Available"
	// MachineDeploymentProgressing is True while a rollout progresses and when it is complete, False when
	// it cannot progress, Unknown while it is paused.
	MachineDeploymentProgressing MachineDeploymentConditionType = "Progressing"
	// MachineDeploymentReplicaFailure: a set cannot create or delete machines, or cannot be scaled outside
	// of a rollout. Its reason is one below or that of the set.
	MachineDeploymentReplicaFailure MachineDeploymentConditionType = "ReplicaFailure"
	// MachineDeploymentFrozen: a set creates nothing, since too many machines exist.
	MachineDeploymentFrozen MachineDeploymentConditionType = "Frozen"
	// MachineDeploymentSelectorOverlap: other deployments select the same machines. MCM does not have it.
	MachineDeploymentSelectorOverlap MachineDeploymentConditionType = "SelectorOverlap"
	// MachineDeploymentSetReleased: the selector does not match sets any more that were created for the
	// deployment and have machines. MCM does not have it.
	MachineDeploymentSetReleased MachineDeploymentConditionType = "SetReleased"
	// MachineDeploymentRollbackRefused: spec.rollbackTo named a revision that does not exist. It stays
	// until the next rollout. MCM does not have it.
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
	// DeploymentReasonUpdateBlocked: an update in place waits for somebody: the update of a node failed, its
	// labels are wrong, or users are to select nodes.
	DeploymentReasonUpdateBlocked = "NodeUpdateBlocked"
	// DeploymentReasonDryRun: the template names another class, and the update strategy "DryRun" has the drivers of the
	// machines say what an update to it would change. Nothing is changed.
	DeploymentReasonDryRun = "UpdateDryRun"
	// DeploymentReasonComplete: all machines are of the current template and available. Scaling does
	// not change that, nor does the replacement of a machine.
	DeploymentReasonComplete = "NewMachineSetAvailable"
	// DeploymentReasonPaused: spec.paused is set.
	DeploymentReasonPaused = "DeploymentPaused"
	// DeploymentReasonResumed: spec.paused was removed.
	DeploymentReasonResumed = "DeploymentResumed"
	// DeploymentReasonCreated: the set of a new template was created.
	DeploymentReasonCreated = "NewMachineSetCreated"
	// DeploymentReasonFound: an old set has become the current one again.
	DeploymentReasonFound = "FoundNewMachineSet"
	// DeploymentReasonTimedOut: there was no progress for spec.progressDeadlineSeconds. The rollout
	// goes on.
	DeploymentReasonTimedOut = "ProgressDeadlineExceeded"
	// DeploymentReasonSetCreateError: the set of a new template cannot be created.
	DeploymentReasonSetCreateError = "MachineSetCreateError"
	// DeploymentReasonSelectsAll: the selector is empty and would select all machines.
	DeploymentReasonSelectsAll = "SelectingAll"
)

// Reasons of Progressing that MCM does not have.
const (
	// DeploymentReasonSetUpdateError: a write of the rollout failed. It is also a reason of
	// ReplicaFailure, for other writes.
	DeploymentReasonSetUpdateError = "MachineSetUpdateError"
	// DeploymentReasonMutated: a mutating webhook changes the template of a new set, so none is created.
	DeploymentReasonMutated = "TemplateMutated"
	// DeploymentReasonInvalid: the spec is invalid. The message names the field.
	DeploymentReasonInvalid = "InvalidSpec"
	// DeploymentReasonNotSupported: the template changed with the strategy InPlaceUpdate, and there is no
	// cluster with nodes.
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
	// DeploymentReasonMachineTransferred: a machine that was updated in place moved to the current set.
	DeploymentReasonMachineTransferred = "MachineTransferred"
	// DeploymentReasonClassTaken: a set has got the class that the template names, since machines can be updated to it.
	DeploymentReasonClassTaken = "MachineClassTaken"
	// DeploymentReasonMachineFollows: a machine got the class of its set, and its VM is updated.
	DeploymentReasonMachineFollows = "MachineFollowsClass"
	// DeploymentReasonNodesSelected: nodes were selected to be updated in place.
	DeploymentReasonNodesSelected = "NodesSelected"
	// DeploymentReasonNodesUnmarked: nodes lost the marks of a rollout that is over.
	DeploymentReasonNodesUnmarked = "NodesUnmarked"
)

// MachineDeploymentCondition is a condition of a deployment.
type MachineDeploymentCondition struct {
	// Type of the condition.
	Type MachineDeploymentConditionType `json:"type"`
	// Status of the condition.
	Status ConditionStatus `json:"status"`
	// LastUpdateTime is when the condition was last written.
	// +optional
	LastUpdateTime metav1.Time `json:"lastUpdateTime,omitzero"`
	// LastTransitionTime is when the status last changed.
	// +optional
	LastTransitionTime metav1.Time `json:"lastTransitionTime,omitzero"`
	// Reason is one word for why.
	// +optional
	Reason string `json:"reason,omitempty"`
	// Message says why in a sentence.
	// +optional
	Message string `json:"message,omitempty"`
}
