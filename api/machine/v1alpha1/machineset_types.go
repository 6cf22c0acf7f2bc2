package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MachineSet keeps a number of equal machines.
//
// +genclient
// +genclient:method=GetScale,verb=get,subresource=scale,result=k8s.io/api/autoscaling/v1.Scale
// +genclient:method=UpdateScale,verb=update,subresource=scale,input=k8s.io/api/autoscaling/v1.Scale,result=k8s.io/api/autoscaling/v1.Scale
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=mcs
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.selector
// +kubebuilder:printcolumn:name="Desired",type=integer,JSONPath=`.spec.replicas`,description="Number of machines wanted"
// +kubebuilder:printcolumn:name="Current",type=integer,JSONPath=`.status.replicas`,description="Number of machines that exist"
// +kubebuilder:printcolumn:name="Ready",type=integer,JSONPath=`.status.readyReplicas`,description="Number of machines whose node is healthy"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`,description="Time since the object was created"
type MachineSet struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// Spec declares the set.
	// +optional
	Spec MachineSetSpec `json:"spec,omitempty"`
	// Status is what is known of the set.
	// +optional
	Status MachineSetStatus `json:"status,omitempty"`
}

// MachineSetList is a list of MachineSets.
//
// +kubebuilder:object:root=true
type MachineSetList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []MachineSet `json:"items"`
}

// MachineSetSpec declares a set of machines.
type MachineSetSpec struct {
	// Replicas is the number of machines wanted. Absent means 0.
	// +optional
	Replicas int32 `json:"replicas,omitempty"`
	// Selector finds the machines of the set. It must match the template's labels.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
	// MachineClass is a left-over of older versions. Nothing acts on it.
	// +optional
	MachineClass ClassSpec `json:"machineClass,omitempty"`
	// Template of the machines.
	// +optional
	Template MachineTemplateSpec `json:"template,omitempty"`
	// MinReadySeconds is the time for which a machine must be ready to count as available.
	// +optional
	MinReadySeconds int32 `json:"minReadySeconds,omitempty"`
	// AutoPreserveFailedMachineMax is the number of failed machines that are
	// preserved without being asked to.
	// +optional
	AutoPreserveFailedMachineMax int32 `json:"autoPreserveFailedMachineMax,omitempty"`
}

// MachineSetStatus is what is known of a set.
type MachineSetStatus struct {
	// Replicas is the number of machines that exist, those being deleted included.
	// +optional
	Replicas int32 `json:"replicas,omitempty"`
	// FullyLabeledReplicas is the number of machines that carry all labels of the template.
	// +optional
	FullyLabeledReplicas int32 `json:"fullyLabeledReplicas,omitempty"`
	// ReadyReplicas is the number of Running machines.
	// +optional
	ReadyReplicas int32 `json:"readyReplicas,omitempty"`
	// AvailableReplicas is the number of machines that are Running, or Available
	// where there is no target cluster.
	// +optional
	AvailableReplicas int32 `json:"availableReplicas,omitempty"`
	// PreservedFailedReplicas is the number of Failed machines that are preserved.
	// +optional
	PreservedFailedReplicas int32 `json:"preservedFailedReplicas,omitempty"`
	// ObservedGeneration is the generation that this status belongs to.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Conditions of the set. Mind the name in JSON.
	// +optional
	Conditions []MachineSetCondition `json:"machineSetCondition,omitempty"`
	// LastOperation holds the time of the last change of this status.
	// +optional
	LastOperation LastOperation `json:"lastOperation,omitempty"`
	// FailedMachines are the machines whose last operation failed. It is nil, or points to a list: a
	// pointer to a nil list would be written as null, for which the schema has no place.
	// +optional
	FailedMachines *[]MachineSummary `json:"failedMachines,omitempty"`
	// AutoPreserveFailedMachineCount is the number of machines that the set has preserved by itself.
	// +optional
	AutoPreserveFailedMachineCount int32 `json:"autoPreserveFailedMachineCount,omitempty"`
	// Selector is spec.selector written as a string, for clients of the scale
	// subresource such as the horizontal pod autoscaler. MCM's CRDs do not know this
	// field: a cluster that runs with them prunes it, so nothing may depend on it.
	// +optional
	Selector string `json:"selector,omitempty"`
}

// MachineSetConditionType is the type of a condition of a set.
type MachineSetConditionType string

// The conditions of a set.
const (
	// MachineSetReplicaFailure: machines could not be created or deleted.
	MachineSetReplicaFailure MachineSetConditionType = "ReplicaFailure"
	// MachineSetFrozen: the set creates nothing, for safety.
	MachineSetFrozen MachineSetConditionType = "Frozen"
	// MachineSetSelectorOverlap: another set selects the same machines. It is also the reason. MCM does
	// not have it.
	MachineSetSelectorOverlap MachineSetConditionType = "SelectorOverlap"
)

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

// MachineSetReasonOvershoot is the reason of MachineSetFrozen, which is MCM's: far too many machines
// exist.
const MachineSetReasonOvershoot = "OverShootingReplicaCount"

// MachineSetCondition is a condition of a set.
type MachineSetCondition struct {
	// Type of the condition.
	Type MachineSetConditionType `json:"type"`
	// Status of the condition.
	Status ConditionStatus `json:"status"`
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
