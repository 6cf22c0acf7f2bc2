package legacy

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PacketMachineClass describes machines of Packet.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:categories={mcm,millwright}
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type PacketMachineClass struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// Spec of the VMs.
	// +optional
	Spec PacketMachineClassSpec `json:"spec,omitempty"`
}

// PacketMachineClassList is a list of PacketMachineClasses.
//
// +kubebuilder:object:root=true
type PacketMachineClassList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []PacketMachineClass `json:"items"`
}

// PacketMachineClassSpec describes machines of Packet.
//
// +kubebuilder:pruning:PreserveUnknownFields
type PacketMachineClassSpec struct {
	// Facility lists the facilities where a machine may be placed.
	// +optional
	Facility []string `json:"facility,omitempty"`
	// MachineType of the machines.
	// +optional
	MachineType string `json:"machineType,omitempty"`
	// BillingCycle is how machines are billed.
	// +optional
	BillingCycle string `json:"billingCycle,omitempty"`
	// OS is the operating system.
	// +optional
	OS string `json:"OS,omitempty"`
	// ProjectID is the project of the machines.
	// +optional
	ProjectID string `json:"projectID,omitempty"`
	// Tags of the machines.
	// +optional
	Tags []string `json:"tags,omitempty"`
	// SshKeys are the SSH keys.
	// +optional
	SshKeys []string `json:"sshKeys,omitempty"`
	// UserData of the machines.
	// +optional
	UserData string `json:"userdata,omitempty"`
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
