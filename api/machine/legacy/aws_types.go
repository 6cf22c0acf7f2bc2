package legacy

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AWSMachineClass describes VMs of AWS.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:categories={mcm,millwright}
// +kubebuilder:printcolumn:name="Machine Type",type=string,JSONPath=`.spec.machineType`
// +kubebuilder:printcolumn:name="AMI",type=string,JSONPath=`.spec.ami`
// +kubebuilder:printcolumn:name="Region",type=string,JSONPath=`.spec.region`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type AWSMachineClass struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// Spec of the VMs.
	// +optional
	Spec AWSMachineClassSpec `json:"spec,omitempty"`
}

// AWSMachineClassList is a list of AWSMachineClasses.
//
// +kubebuilder:object:root=true
type AWSMachineClassList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []AWSMachineClass `json:"items"`
}

// AWSMachineClassSpec describes VMs of AWS.
//
// +kubebuilder:pruning:PreserveUnknownFields
type AWSMachineClassSpec struct {
	// AMI is the ID of the machine image.
	// +optional
	AMI string `json:"ami,omitempty"`
	// Region of the VMs.
	// +optional
	Region string `json:"region,omitempty"`
	// BlockDevices are the disks of a VM.
	// +optional
	BlockDevices []AWSBlockDeviceMappingSpec `json:"blockDevices,omitempty"`
	// EBSOptimized requests dedicated bandwidth to EBS.
	// +optional
	EBSOptimized bool `json:"ebsOptimized,omitempty"`
	// IAM is the instance profile of the VMs.
	// +optional
	IAM AWSIAMProfileSpec `json:"iam,omitempty"`
	// MachineType is the instance type, such as m5.large.
	// +optional
	MachineType string `json:"machineType,omitempty"`
	// KeyName names the key pair for SSH.
	// +optional
	KeyName string `json:"keyName,omitempty"`
	// Monitoring requests detailed monitoring.
	// +optional
	Monitoring bool `json:"monitoring,omitempty"`
	// NetworkInterfaces are the network interfaces of a VM.
	// +optional
	NetworkInterfaces []AWSNetworkInterfaceSpec `json:"networkInterfaces,omitempty"`
	// Tags of the VMs.
	// +optional
	Tags map[string]string `json:"tags,omitempty"`
	// SpotPrice is the highest price of a spot VM. If nil, on-demand VMs are created.
	// +optional
	SpotPrice *string `json:"spotPrice,omitempty"`
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

// AWSBlockDeviceMappingSpec describes a disk.
//
// +kubebuilder:pruning:PreserveUnknownFields
type AWSBlockDeviceMappingSpec struct {
	// DeviceName is the name of the device in the VM, such as /dev/sdh.
	// +optional
	DeviceName string `json:"deviceName,omitempty"`
	// EBS describes the EBS volume.
	// +optional
	EBS AWSEbsBlockDeviceSpec `json:"ebs,omitempty"`
	// NoDevice suppresses the device of that name in the image.
	// +optional
	NoDevice string `json:"noDevice,omitempty"`
	// VirtualName is the name of an ephemeral disk, such as ephemeral0.
	// +optional
	VirtualName string `json:"virtualName,omitempty"`
}

// AWSEbsBlockDeviceSpec describes an EBS volume.
//
// +kubebuilder:pruning:PreserveUnknownFields
type AWSEbsBlockDeviceSpec struct {
	// DeleteOnTermination deletes the volume together with the VM. If nil, the provider's default is used.
	// +optional
	DeleteOnTermination *bool `json:"deleteOnTermination,omitempty"`
	// Encrypted requests an encrypted volume.
	// +optional
	Encrypted bool `json:"encrypted,omitempty"`
	// IOPS is the number of operations per second that the volume supports.
	// +optional
	IOPS int64 `json:"iops,omitempty"`
	// KMSKeyID identifies the key of an encrypted volume. If nil, the provider's default is used.
	// +optional
	KMSKeyID *string `json:"kmsKeyID,omitempty"`
	// SnapshotID is the snapshot from which the volume is created. If nil, the volume is blank.
	// +optional
	SnapshotID *string `json:"snapshotID,omitempty"`
	// VolumeSize in GiB.
	// +optional
	VolumeSize int64 `json:"volumeSize,omitempty"`
	// VolumeType is gp2, io1, st1, sc1 or standard.
	// +optional
	VolumeType string `json:"volumeType,omitempty"`
}

// AWSIAMProfileSpec describes an instance profile.
//
// +kubebuilder:pruning:PreserveUnknownFields
type AWSIAMProfileSpec struct {
	// ARN is the Amazon Resource Name of the profile.
	// +optional
	ARN string `json:"arn,omitempty"`
	// Name of the profile.
	// +optional
	Name string `json:"name,omitempty"`
}

// AWSNetworkInterfaceSpec describes a network interface.
//
// +kubebuilder:pruning:PreserveUnknownFields
type AWSNetworkInterfaceSpec struct {
	// AssociatePublicIPAddress requests a public IPv4 address. If nil, the provider's default is used.
	// +optional
	AssociatePublicIPAddress *bool `json:"associatePublicIPAddress,omitempty"`
	// DeleteOnTermination deletes the interface together with the VM. If nil, the provider's default is used.
	// +optional
	DeleteOnTermination *bool `json:"deleteOnTermination,omitempty"`
	// Description of the interface.
	// +optional
	Description *string `json:"description,omitempty"`
	// SecurityGroupIDs are the security groups of the interface.
	// +optional
	SecurityGroupIDs []string `json:"securityGroupIDs,omitempty"`
	// SubnetID is the subnet of the interface.
	// +optional
	SubnetID string `json:"subnetID,omitempty"`
}
