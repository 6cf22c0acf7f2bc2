package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MachineSet keeps a number of identical machines.
//
// +genclient
// +genclient:method=GetScale,verb=get,subresource=scale,result=k8s.io/api/autoscaling/v1.Scale
// +genclient:method=UpdateScale,verb=update,subresource=scale,input=k8s.io/api/autoscaling/v1.Scale,result=k8s.io/api/autoscaling/v1.Scale
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=mcs,categories={mcm,millwright}
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.selector
// +kubebuilder:printcolumn:name="Desired",type=integer,JSONPath=`.spec.replicas`,description="Number of desired machines"
// +kubebuilder:printcolumn:name="Current",type=integer,JSONPath=`.status.replicas`,description="Number of machines that exist"
// +kubebuilder:printcolumn:name="Ready",type=integer,JSONPath=`.status.readyReplicas`,description="Number of machines whose node is healthy"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`,description="Time since the object was created"
type MachineSet struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// Spec is the desired state of the set.
	// +optional
	Spec MachineSetSpec `json:"spec,omitempty"`
	// Status is the observed state of the set.
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

// MachineSetSpec is the desired state of a set.
type MachineSetSpec struct {
	// Replicas is the desired number of machines. Defaults to 0.
	// +optional
	Replicas int32 `json:"replicas,omitempty"`
	// Selector selects the machines of the set. It must match the template's labels.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
	// MachineClass is deprecated and ignored. It exists for objects of older versions.
	// +optional
	MachineClass ClassSpec `json:"machineClass,omitempty"`
	// Template of the machines.
	// +optional
	Template MachineTemplateSpec `json:"template,omitempty"`
	// MinReadySeconds is how long a machine must be ready before it counts as available.
	// +optional
	MinReadySeconds int32 `json:"minReadySeconds,omitempty"`
	// AutoPreserveFailedMachineMax is the maximum number of failed machines that are preserved automatically.
	// +optional
	AutoPreserveFailedMachineMax int32 `json:"autoPreserveFailedMachineMax,omitempty"`
}

// MachineSetStatus is the observed state of a set.
type MachineSetStatus struct {
	// Replicas is the number of machines that exist, including those being deleted.
	// +optional
	Replicas int32 `json:"replicas,omitempty"`
	// FullyLabeledReplicas is the number of machines that have all labels of the template.
	// +optional
	FullyLabeledReplicas int32 `json:"fullyLabeledReplicas,omitempty"`
	// ReadyReplicas is the number of Running machines.
	// +optional
	ReadyReplicas int32 `json:"readyReplicas,omitempty"`
	// AvailableReplicas is the number of machines that are Running or, if there is no target cluster,
	// Available.
	// +optional
	AvailableReplicas int32 `json:"availableReplicas,omitempty"`
	// PreservedFailedReplicas is the number of Failed machines that are preserved.
	// +optional
	PreservedFailedReplicas int32 `json:"preservedFailedReplicas,omitempty"`
	// ObservedGeneration is the generation that this status belongs to.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Conditions of the set. Note the name in JSON.
	// +optional
	Conditions []MachineSetCondition `json:"machineSetCondition,omitempty"`
	// LastOperation holds the time of the last change of this status.
	// +optional
	LastOperation LastOperation `json:"lastOperation,omitempty"`
	// FailedMachines are the machines whose last operation failed. It is nil or points to a list: a pointer to
	// a nil list would be written as null, which the schema rejects.
	// +optional
	FailedMachines *[]MachineSummary `json:"failedMachines,omitempty"`
	// AutoPreserveFailedMachineCount is the number of machines that the set has preserved automatically.
	// +optional
	AutoPreserveFailedMachineCount int32 `json:"autoPreserveFailedMachineCount,omitempty"`
	// Selector is spec.selector as a string, for clients of the scale subresource such as the horizontal pod
	// autoscaler. MCM's CRDs do not have this field: a cluster with those CRDs prunes it, so nothing may depend
	// on it.
	// +optional
	Selector string `json:"selector,omitempty"`
}

// MachineSetConditionType is the type of a condition of a set.
type MachineSetConditionType string

// The conditions of a set.
const (
	// MachineSetReplicaFailure means that machines could not be created or deleted.
	MachineSetReplicaFailure MachineSetConditionType = "ReplicaFailure"
	// MachineSetFrozen means that the set creates no machines, for safety.
	MachineSetFrozen MachineSetConditionType = "Frozen"
	// MachineSetSelectorOverlap means that another set selects the same machines. It is also the reason. MCM does not
	// have this condition.
	MachineSetSelectorOverlap MachineSetConditionType = "SelectorOverlap"
)

// Reasons of the condition MachineSetReplicaFailure.
const (
	// MachineSetReasonFailedCreate means that a Machine could not be created. As in MCM.
	MachineSetReasonFailedCreate = "FailedCreate"
	// MachineSetReasonFailedDelete means that a Machine could not be deleted. As in MCM.
	MachineSetReasonFailedDelete = "FailedDelete"
	// MachineSetReasonFailedAdopt means that a Machine could not be adopted or released.
	MachineSetReasonFailedAdopt = "FailedAdopt"
	// MachineSetReasonFailedUpdate means that a Machine could not be updated from the template.
	MachineSetReasonFailedUpdate = "FailedUpdate"
	// MachineSetReasonInvalidSpec means that a field of the set is invalid, so the set is not reconciled.
	MachineSetReasonInvalidSpec = "InvalidSpec"
)

// MachineSetReasonOvershoot is the reason of MachineSetFrozen, as in MCM: far too many machines exist.
const MachineSetReasonOvershoot = "OverShootingReplicaCount"

// MachineSetCondition is a condition of a set.
type MachineSetCondition struct {
	// Type of the condition: "ReplicaFailure", "Frozen" or "SelectorOverlap".
	Type MachineSetConditionType `json:"type"`
	// Status of the condition: "True", "False" or "Unknown".
	Status ConditionStatus `json:"status"`
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
