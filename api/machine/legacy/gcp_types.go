package legacy

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// GCPMachineClass describes VMs of Google Cloud.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:categories={mcm,millwright}
// +kubebuilder:printcolumn:name="Machine Type",type=string,JSONPath=`.spec.machineType`
// +kubebuilder:printcolumn:name="Region",type=string,JSONPath=`.spec.region`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type GCPMachineClass struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// Spec of the VMs.
	// +optional
	Spec GCPMachineClassSpec `json:"spec,omitempty"`
}

// GCPMachineClassList is a list of GCPMachineClasses.
//
// +kubebuilder:object:root=true
type GCPMachineClassList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []GCPMachineClass `json:"items"`
}

// GCPMachineClassSpec describes VMs of Google Cloud.
//
// +kubebuilder:pruning:PreserveUnknownFields
type GCPMachineClassSpec struct {
	// CanIPForward lets VMs send packets with other source addresses.
	// +optional
	CanIPForward bool `json:"canIpForward,omitempty"`
	// DeletionProtection protects VMs from deletion.
	// +optional
	DeletionProtection bool `json:"deletionProtection,omitempty"`
	// Description of the VMs.
	// +optional
	Description *string `json:"description,omitempty"`
	// Disks of a VM.
	// +optional
	Disks []*GCPDisk `json:"disks,omitempty"`
	// Labels of the VMs.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// MachineType of the VMs.
	// +optional
	MachineType string `json:"machineType,omitempty"`
	// Metadata of the VMs.
	// +optional
	Metadata []*GCPMetadata `json:"metadata,omitempty"`
	// NetworkInterfaces of a VM.
	// +optional
	NetworkInterfaces []*GCPNetworkInterface `json:"networkInterfaces,omitempty"`
	// Scheduling of the VMs.
	// +optional
	Scheduling GCPScheduling `json:"scheduling,omitempty"`
	// ServiceAccounts of the VMs.
	// +optional
	ServiceAccounts []GCPServiceAccount `json:"serviceAccounts,omitempty"`
	// Tags of the VMs.
	// +optional
	Tags []string `json:"tags,omitempty"`
	// Region of the VMs.
	// +optional
	Region string `json:"region,omitempty"`
	// Zone of the VMs.
	// +optional
	Zone string `json:"zone,omitempty"`
	// SecretRef names the Secret with the user data and, unless CredentialsSecretRef is set, the
	// provider's credentials.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	SecretRef *corev1.SecretReference `json:"secretRef,omitempty"`
	// CredentialsSecretRef names a Secret whose data takes precedence over that of SecretRef.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	CredentialsSecretRef *corev1.SecretReference `json:"credentialsSecretRef,omitempty"`
}

// GCPDisk describes a disk.
//
// +kubebuilder:pruning:PreserveUnknownFields
type GCPDisk struct {
	// AutoDelete deletes the disk together with the VM. If nil, the provider's default is used.
	// +optional
	AutoDelete *bool `json:"autoDelete,omitempty"`
	// Boot makes the VM boot from this disk.
	// +optional
	Boot bool `json:"boot,omitempty"`
	// SizeGb is the size in GB.
	// +optional
	SizeGb int64 `json:"sizeGb,omitempty"`
	// Type of the disk.
	// +optional
	Type string `json:"type,omitempty"`
	// Interface of the disk, such as SCSI.
	// +optional
	Interface string `json:"interface,omitempty"`
	// Image from which the disk is created.
	// +optional
	Image string `json:"image,omitempty"`
	// Labels of the disk.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
}

// GCPMetadata is an entry of the metadata.
//
// +kubebuilder:pruning:PreserveUnknownFields
type GCPMetadata struct {
	// Key of the entry.
	// +optional
	Key string `json:"key,omitempty"`
	// Value of the entry.
	// +optional
	Value *string `json:"value,omitempty"`
}

// GCPNetworkInterface describes a network interface.
//
// +kubebuilder:pruning:PreserveUnknownFields
type GCPNetworkInterface struct {
	// DisableExternalIP prevents the interface from getting a public address.
	// +optional
	DisableExternalIP bool `json:"disableExternalIP,omitempty"`
	// Network of the interface.
	// +optional
	Network string `json:"network,omitempty"`
	// Subnetwork of the interface.
	// +optional
	Subnetwork string `json:"subnetwork,omitempty"`
}

// GCPScheduling describes how VMs are scheduled.
//
// +kubebuilder:pruning:PreserveUnknownFields
type GCPScheduling struct {
	// AutomaticRestart restarts a VM that the provider terminated.
	// +optional
	AutomaticRestart bool `json:"automaticRestart,omitempty"`
	// OnHostMaintenance is MIGRATE or TERMINATE.
	// +optional
	OnHostMaintenance string `json:"onHostMaintenance,omitempty"`
	// Preemptible requests preemptible VMs.
	// +optional
	Preemptible bool `json:"preemptible,omitempty"`
}

// GCPServiceAccount is a service account of a VM.
//
// +kubebuilder:pruning:PreserveUnknownFields
type GCPServiceAccount struct {
	// Email of the account.
	// +optional
	Email string `json:"email,omitempty"`
	// Scopes of the account.
	// +optional
	Scopes []string `json:"scopes,omitempty"`
}
