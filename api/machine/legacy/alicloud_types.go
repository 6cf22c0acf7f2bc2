package legacy

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AlicloudMachineClass describes VMs of Alibaba Cloud.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:categories={mcm,millwright}
// +kubebuilder:printcolumn:name="Instance Type",type=string,JSONPath=`.spec.instanceType`
// +kubebuilder:printcolumn:name="Region",type=string,JSONPath=`.spec.region`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type AlicloudMachineClass struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// Spec of the VMs.
	// +optional
	Spec AlicloudMachineClassSpec `json:"spec,omitempty"`
}

// AlicloudMachineClassList is a list of AlicloudMachineClasses.
//
// +kubebuilder:object:root=true
type AlicloudMachineClassList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []AlicloudMachineClass `json:"items"`
}

// AlicloudMachineClassSpec describes VMs of Alibaba Cloud.
//
// +kubebuilder:pruning:PreserveUnknownFields
type AlicloudMachineClassSpec struct {
	// ImageID is the ID of the machine image.
	// +optional
	ImageID string `json:"imageID,omitempty"`
	// InstanceType of the VMs.
	// +optional
	InstanceType string `json:"instanceType,omitempty"`
	// Region of the VMs.
	// +optional
	Region string `json:"region,omitempty"`
	// ZoneID is the zone of the VMs.
	// +optional
	ZoneID string `json:"zoneID,omitempty"`
	// SecurityGroupID is the security group of the VMs.
	// +optional
	SecurityGroupID string `json:"securityGroupID,omitempty"`
	// VSwitchID is the virtual switch of the VMs.
	// +optional
	VSwitchID string `json:"vSwitchID,omitempty"`
	// PrivateIPAddress of the VM.
	// +optional
	PrivateIPAddress string `json:"privateIPAddress,omitempty"`
	// SystemDisk describes the system disk. If nil, the provider's default is used.
	// +optional
	SystemDisk *AlicloudSystemDisk `json:"systemDisk,omitempty"`
	// DataDisks are the data disks.
	// +optional
	DataDisks []AlicloudDataDisk `json:"dataDisks,omitempty"`
	// InstanceChargeType is how VMs are billed.
	// +optional
	InstanceChargeType string `json:"instanceChargeType,omitempty"`
	// InternetChargeType is how traffic is billed.
	// +optional
	InternetChargeType string `json:"internetChargeType,omitempty"`
	// InternetMaxBandwidthIn in Mbit/s. If nil, the provider's default is used.
	// +optional
	InternetMaxBandwidthIn *int `json:"internetMaxBandwidthIn,omitempty"`
	// InternetMaxBandwidthOut in Mbit/s. If nil, the provider's default is used.
	// +optional
	InternetMaxBandwidthOut *int `json:"internetMaxBandwidthOut,omitempty"`
	// SpotStrategy is the bidding strategy for spot VMs.
	// +optional
	SpotStrategy string `json:"spotStrategy,omitempty"`
	// IoOptimized requests VMs that are optimized for I/O.
	// +optional
	IoOptimized string `json:"IoOptimized,omitempty"`
	// Tags of the VMs.
	// +optional
	Tags map[string]string `json:"tags,omitempty"`
	// KeyPairName names the key pair for SSH.
	// +optional
	KeyPairName string `json:"keyPairName,omitempty"`
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

// AlicloudDataDisk describes a data disk.
//
// +kubebuilder:pruning:PreserveUnknownFields
type AlicloudDataDisk struct {
	// Name of the disk.
	// +optional
	Name string `json:"name,omitempty"`
	// Category of the disk.
	// +optional
	Category string `json:"category,omitempty"`
	// Description of the disk.
	// +optional
	Description string `json:"description,omitempty"`
	// Encrypted requests an encrypted disk.
	// +optional
	Encrypted bool `json:"encrypted,omitempty"`
	// DeleteWithInstance deletes the disk together with the VM. If nil, the provider's default is used.
	// +optional
	DeleteWithInstance *bool `json:"deleteWithInstance,omitempty"`
	// Size in GiB.
	// +optional
	Size int `json:"size,omitempty"`
}

// AlicloudSystemDisk describes a system disk.
//
// +kubebuilder:pruning:PreserveUnknownFields
type AlicloudSystemDisk struct {
	// Category of the disk.
	// +optional
	Category string `json:"category,omitempty"`
	// Size in GiB.
	// +optional
	Size int `json:"size,omitempty"`
}
