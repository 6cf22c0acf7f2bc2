package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Machine is a VM that becomes a Node.
//
// +genclient
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=mc,categories={mcm,millwright}
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.currentStatus.phase`,description="Phase of the machine"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`,description="Time since the object was created"
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.metadata.labels.node`,description="Node that the machine became"
// +kubebuilder:printcolumn:name="ProviderID",type=string,JSONPath=`.spec.providerID`,description="ID of the VM at the provider",priority=1
type Machine struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// Spec is the desired state of the machine.
	// +optional
	Spec MachineSpec `json:"spec,omitempty"`
	// Status is the observed state of the machine.
	// +optional
	Status MachineStatus `json:"status,omitempty"`
}

// MachineList is a list of Machines.
//
// +kubebuilder:object:root=true
type MachineList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Machine `json:"items"`
}

// MachineSpec is the desired state of a machine.
type MachineSpec struct {
	// Class names the MachineClass, in the machine's namespace, that describes the VM. Kind and name must not
	// be empty.
	// +optional
	Class ClassSpec `json:"class,omitempty"`
	// ProviderID identifies the VM at the provider. It is empty until the driver has returned it, and set only
	// once. To restore machines into an empty cluster, set it: the existing VMs are then adopted.
	// +optional
	ProviderID string `json:"providerID,omitempty"`
	// NodeTemplateSpec has the annotations, labels and taints of the node.
	// +optional
	NodeTemplateSpec NodeTemplateSpec `json:"nodeTemplate,omitempty"`
	// MachineConfiguration overrides the manager's flags for this machine.
	*MachineConfiguration `json:",inline"`
}

// ClassSpec names the class of a machine.
type ClassSpec struct {
	// APIGroup of the class. It is informative only and ignored.
	// +optional
	APIGroup string `json:"apiGroup,omitempty"`
	// Kind of the class, normally "MachineClass".
	// +optional
	Kind string `json:"kind,omitempty"`
	// Name of the class.
	// +optional
	Name string `json:"name,omitempty"`
}

// NodeTemplateSpec describes the metadata and taints of a node.
type NodeTemplateSpec struct {
	// ObjectMeta holds the annotations and labels; its other fields are ignored.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// Spec holds the taints; its other fields are ignored.
	// +optional
	Spec corev1.NodeSpec `json:"spec,omitempty"`
}

// MachineConfiguration overrides flags of the manager for one machine. If a field is unset, the flag applies.
type MachineConfiguration struct {
	// MachineDrainTimeout is the time after which a drain becomes forceful
	// (flag --machine-drain-timeout).
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[-+]?(0|([0-9]{1,6}(\.[0-9]*)?h|[0-9]{1,8}(\.[0-9]*)?m|[0-9]{1,9}(\.[0-9]*)?s|[0-9]{1,12}(\.[0-9]*)?ms|[0-9]{1,15}(\.[0-9]*)?[uµμ]s|[0-9]{1,18}ns)+)$`
	// +optional
	MachineDrainTimeout *metav1.Duration `json:"drainTimeout,omitempty"`
	// MachineHealthTimeout is the time after which an unhealthy machine is
	// declared Failed (flag --machine-health-timeout).
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[-+]?(0|([0-9]{1,6}(\.[0-9]*)?h|[0-9]{1,8}(\.[0-9]*)?m|[0-9]{1,9}(\.[0-9]*)?s|[0-9]{1,12}(\.[0-9]*)?ms|[0-9]{1,15}(\.[0-9]*)?[uµμ]s|[0-9]{1,18}ns)+)$`
	// +optional
	MachineHealthTimeout *metav1.Duration `json:"healthTimeout,omitempty"`
	// MachineCreationTimeout is the time after which a machine that has not joined is declared Failed (flag
	// --machine-creation-timeout). The annotation node.machine.sapcloud.io/effective-creation-timeout takes
	// precedence over both.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[-+]?(0|([0-9]{1,6}(\.[0-9]*)?h|[0-9]{1,8}(\.[0-9]*)?m|[0-9]{1,9}(\.[0-9]*)?s|[0-9]{1,12}(\.[0-9]*)?ms|[0-9]{1,15}(\.[0-9]*)?[uµμ]s|[0-9]{1,18}ns)+)$`
	// +optional
	MachineCreationTimeout *metav1.Duration `json:"creationTimeout,omitempty"`
	// MachineInPlaceUpdateTimeout is the time after which an in-place update is
	// declared failed (flag --machine-inplace-update-timeout).
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[-+]?(0|([0-9]{1,6}(\.[0-9]*)?h|[0-9]{1,8}(\.[0-9]*)?m|[0-9]{1,9}(\.[0-9]*)?s|[0-9]{1,12}(\.[0-9]*)?ms|[0-9]{1,15}(\.[0-9]*)?[uµμ]s|[0-9]{1,18}ns)+)$`
	// +optional
	MachineInPlaceUpdateTimeout *metav1.Duration `json:"inPlaceUpdateTimeout,omitempty"`
	// MachinePreserveTimeout is how long a preserved machine is kept (flag --machine-preserve-timeout).
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[-+]?(0|([0-9]{1,6}(\.[0-9]*)?h|[0-9]{1,8}(\.[0-9]*)?m|[0-9]{1,9}(\.[0-9]*)?s|[0-9]{1,12}(\.[0-9]*)?ms|[0-9]{1,15}(\.[0-9]*)?[uµμ]s|[0-9]{1,18}ns)+)$`
	// +optional
	MachinePreserveTimeout *metav1.Duration `json:"machinePreserveTimeout,omitempty"`
	// DisableHealthTimeout prevents an unhealthy machine from ever being declared Failed.
	// +optional
	DisableHealthTimeout *bool `json:"disableHealthTimeout,omitempty"`
	// MaxEvictRetries is the number of refused evictions of a pod after which it
	// is deleted (flag --machine-max-evict-retries).
	// +optional
	MaxEvictRetries *int32 `json:"maxEvictRetries,omitempty"`
	// NodeConditions is the comma-separated list of node conditions that make a
	// machine unhealthy unless they are False (flag --node-conditions).
	// +optional
	NodeConditions *string `json:"nodeConditions,omitempty"`
}

// MachineStatus is the observed state of a machine.
type MachineStatus struct {
	// Addresses of the VM and the name of its node. They are set only if there is no target cluster.
	// +optional
	Addresses []corev1.NodeAddress `json:"addresses,omitempty"`
	// Conditions is a copy of the node's conditions.
	// +optional
	Conditions []corev1.NodeCondition `json:"conditions,omitempty"`
	// LastOperation is the last operation on the machine.
	// +optional
	LastOperation LastOperation `json:"lastOperation,omitempty"`
	// CurrentStatus has the phase of the machine.
	// +optional
	CurrentStatus CurrentStatus `json:"currentStatus,omitempty"`
	// LastKnownState is opaque text that the driver returns and receives again in its next call.
	// +optional
	LastKnownState string `json:"lastKnownState,omitempty"`
}

// LastOperation is the last operation on a machine and its result.
type LastOperation struct {
	// Description of the operation and its result, for people.
	// +optional
	Description string `json:"description,omitempty"`
	// ErrorCode is the name of the driver's error code, such as "ResourceExhausted", if a creation or
	// initialization failed.
	// +optional
	ErrorCode string `json:"errorCode,omitempty"`
	// LastUpdateTime is when this record last changed.
	// +optional
	LastUpdateTime metav1.Time `json:"lastUpdateTime,omitzero"`
	// State of the operation: "Processing", "Failed" or "Successful".
	// +optional
	State MachineState `json:"state,omitempty"`
	// Type of the operation: "Create", "Update", "InPlaceUpdate", "DrainNode", "HealthCheck" or "Delete".
	// +optional
	Type MachineOperationType `json:"type,omitempty"`
}

// CurrentStatus is the phase of a machine, with its times.
type CurrentStatus struct {
	// Phase of the machine: "Pending", "Available", "Running", "Terminating", "Unknown", "Failed",
	// "CrashLoopBackOff", "InPlaceUpdating", "InPlaceUpdateSuccessful" or "InPlaceUpdateFailed". It is empty
	// before the first reconcile.
	// +optional
	Phase MachinePhase `json:"phase,omitempty"`
	// TimeoutActive is true while a Pending machine has not joined the target cluster. It is informative only.
	// +optional
	TimeoutActive bool `json:"timeoutActive,omitempty"`
	// LastUpdateTime is when the phase or the preservation last changed. Health and in-place timeouts start at
	// this time.
	// +optional
	LastUpdateTime metav1.Time `json:"lastUpdateTime,omitzero"`
	// PreserveExpiryTime is the time until which the machine is preserved. If nil, it is not preserved.
	// +optional
	PreserveExpiryTime *metav1.Time `json:"preserveExpiryTime,omitempty"`
}

// MachinePhase is a stage in the life of a machine.
type MachinePhase string

// The phases of a machine. The phase of a new machine is empty.
const (
	// MachinePending means that the VM exists, and its node has not joined yet.
	MachinePending MachinePhase = "Pending"
	// MachineAvailable means that the VM exists, and there is no target cluster to join.
	MachineAvailable MachinePhase = "Available"
	// MachineRunning means that the node has joined and is healthy.
	MachineRunning MachinePhase = "Running"
	// MachineTerminating means that the machine is being deleted.
	MachineTerminating MachinePhase = "Terminating"
	// MachineUnknown means that the node is unhealthy or gone.
	MachineUnknown MachinePhase = "Unknown"
	// MachineFailed means that the machine will not recover; its set replaces it.
	MachineFailed MachinePhase = "Failed"
	// MachineCrashLoopBackOff means that the creation of the VM failed and is retried.
	MachineCrashLoopBackOff MachinePhase = "CrashLoopBackOff"
	// MachineInPlaceUpdating means that the node is being updated in place.
	MachineInPlaceUpdating MachinePhase = "InPlaceUpdating"
	// MachineInPlaceUpdateSuccessful means that the in-place update succeeded.
	MachineInPlaceUpdateSuccessful MachinePhase = "InPlaceUpdateSuccessful"
	// MachineInPlaceUpdateFailed means that the in-place update failed.
	MachineInPlaceUpdateFailed MachinePhase = "InPlaceUpdateFailed"
)

// MachineState is the state of an operation on a machine.
type MachineState string

// The states of an operation.
const (
	// MachineStateProcessing means that the operation is running.
	MachineStateProcessing MachineState = "Processing"
	// MachineStateFailed means that the last attempt failed; another one may follow.
	MachineStateFailed MachineState = "Failed"
	// MachineStateSuccessful means that the operation succeeded.
	MachineStateSuccessful MachineState = "Successful"
)

// MachineOperationType is a kind of operation on a machine.
type MachineOperationType string

// The operations on a machine.
const (
	// MachineOperationCreate means that the VM is being created, or its node has not joined yet.
	MachineOperationCreate MachineOperationType = "Create"
	// MachineOperationUpdate means that the VM is being updated. MCM never writes it.
	MachineOperationUpdate MachineOperationType = "Update"
	// MachineOperationInPlaceUpdate means that the node is being updated in place.
	MachineOperationInPlaceUpdate MachineOperationType = "InPlaceUpdate"
	// MachineOperationDrainNode means that the drain before an in-place update failed.
	MachineOperationDrainNode MachineOperationType = "DrainNode"
	// MachineOperationHealthCheck means that the node's health changed.
	MachineOperationHealthCheck MachineOperationType = "HealthCheck"
	// MachineOperationDelete means that the machine is being deleted.
	MachineOperationDelete MachineOperationType = "Delete"
)

// ConditionStatus is the status of a condition.
type ConditionStatus string

// The statuses of a condition.
const (
	// ConditionTrue means that the condition holds.
	ConditionTrue ConditionStatus = "True"
	// ConditionFalse means that the condition does not hold.
	ConditionFalse ConditionStatus = "False"
	// ConditionUnknown means that it is not known whether it holds.
	ConditionUnknown ConditionStatus = "Unknown"
)

// MachineSummary names a machine in the status of its set or deployment.
type MachineSummary struct {
	// Name of the machine.
	// +optional
	Name string `json:"name,omitempty"`
	// ProviderID of its VM, if there is one.
	// +optional
	ProviderID string `json:"providerID,omitempty"`
	// LastOperation of the machine.
	// +optional
	LastOperation LastOperation `json:"lastOperation,omitempty"`
	// OwnerRef is the name of the MachineSet that owns the machine.
	// +optional
	OwnerRef string `json:"ownerRef,omitempty"`
}

// MachineTemplateSpec is the template for the machines of a set.
type MachineTemplateSpec struct {
	// ObjectMeta has the labels and annotations of the machines.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// Spec of the machines.
	// +optional
	Spec MachineSpec `json:"spec,omitempty"`
}
