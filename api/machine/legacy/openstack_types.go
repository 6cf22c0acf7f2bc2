package legacy

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// OpenStackMachineClass describes VMs of OpenStack.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:categories={mcm,millwright}
// +kubebuilder:printcolumn:name="Flavor",type=string,JSONPath=`.spec.flavorName`
// +kubebuilder:printcolumn:name="Image",type=string,JSONPath=`.spec.imageName`
// +kubebuilder:printcolumn:name="Region",type=string,JSONPath=`.spec.region`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type OpenStackMachineClass struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// Spec of the VMs.
	// +optional
	Spec OpenStackMachineClassSpec `json:"spec,omitempty"`
}

// OpenStackMachineClassList is a list of OpenStackMachineClasses.
//
// +kubebuilder:object:root=true
type OpenStackMachineClassList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []OpenStackMachineClass `json:"items"`
}

// OpenStackMachineClassSpec describes VMs of OpenStack.
//
// +kubebuilder:pruning:PreserveUnknownFields
type OpenStackMachineClassSpec struct {
	// ImageID is the ID of the machine image.
	// +optional
	ImageID string `json:"imageID,omitempty"`
	// ImageName is the name of the machine image.
	// +optional
	ImageName string `json:"imageName,omitempty"`
	// Region of the VMs.
	// +optional
	Region string `json:"region,omitempty"`
	// AvailabilityZone of the VMs.
	// +optional
	AvailabilityZone string `json:"availabilityZone,omitempty"`
	// FlavorName names the flavor of the VMs.
	// +optional
	FlavorName string `json:"flavorName,omitempty"`
	// KeyName names the key pair for SSH.
	// +optional
	KeyName string `json:"keyName,omitempty"`
	// SecurityGroups of the VMs.
	// +optional
	SecurityGroups []string `json:"securityGroups,omitempty"`
	// Tags of the VMs.
	// +optional
	Tags map[string]string `json:"tags,omitempty"`
	// NetworkID is the network of the VMs.
	// +optional
	NetworkID string `json:"networkID,omitempty"`
	// Networks are the networks of the VMs.
	// +optional
	Networks []OpenStackNetwork `json:"networks,omitempty"`
	// SubnetID is the subnet of the VMs. If nil, the provider chooses one.
	// +optional
	SubnetID *string `json:"subnetID,omitempty"`
	// PodNetworkCIDR is the address range of the Pods.
	// +optional
	PodNetworkCIDR string `json:"podNetworkCidr,omitempty"`
	// RootDiskSize in GB. If zero, the flavor's size is used.
	// +optional
	RootDiskSize int `json:"rootDiskSize,omitempty"`
	// UseConfigDrive makes VMs read metadata from a disk. If nil, the provider's default is used.
	// +optional
	UseConfigDrive *bool `json:"useConfigDrive,omitempty"`
	// ServerGroupID is the server group of the VMs. If nil, they are in none.
	// +optional
	ServerGroupID *string `json:"serverGroupID,omitempty"`
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

// OpenStackNetwork names a network.
//
// +kubebuilder:pruning:PreserveUnknownFields
type OpenStackNetwork struct {
	// ID of the network. It takes priority over the name.
	// +optional
	ID string `json:"id,omitempty"`
	// Name of the network.
	// +optional
	Name string `json:"name,omitempty"`
	// PodNetwork makes the network carry the Pods' addresses.
	// +optional
	PodNetwork bool `json:"podNetwork,omitempty"`
}
