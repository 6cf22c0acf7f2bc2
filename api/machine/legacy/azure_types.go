package legacy

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AzureMachineClass describes VMs of Azure.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:categories={mcm,millwright}
// +kubebuilder:printcolumn:name="VM Size",type=string,JSONPath=`.spec.properties.hardwareProfile.vmSize`
// +kubebuilder:printcolumn:name="Location",type=string,JSONPath=`.spec.location`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type AzureMachineClass struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// Spec of the VMs.
	// +optional
	Spec AzureMachineClassSpec `json:"spec,omitempty"`
}

// AzureMachineClassList is a list of AzureMachineClasses.
//
// +kubebuilder:object:root=true
type AzureMachineClassList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []AzureMachineClass `json:"items"`
}

// AzureMachineClassSpec describes VMs of Azure.
//
// +kubebuilder:pruning:PreserveUnknownFields
type AzureMachineClassSpec struct {
	// Location of the VMs.
	// +optional
	Location string `json:"location,omitempty"`
	// Tags of the VMs.
	// +optional
	Tags map[string]string `json:"tags,omitempty"`
	// Properties of the VMs.
	// +optional
	Properties AzureVirtualMachineProperties `json:"properties,omitempty"`
	// ResourceGroup of the VMs.
	// +optional
	ResourceGroup string `json:"resourceGroup,omitempty"`
	// SubnetInfo is the subnet of the VMs.
	// +optional
	SubnetInfo AzureSubnetInfo `json:"subnetInfo,omitempty"`
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

// AzureVirtualMachineProperties describes a VM.
//
// +kubebuilder:pruning:PreserveUnknownFields
type AzureVirtualMachineProperties struct {
	// HardwareProfile is the size of the VM.
	// +optional
	HardwareProfile AzureHardwareProfile `json:"hardwareProfile,omitempty"`
	// StorageProfile describes the image and the disks of the VM.
	// +optional
	StorageProfile AzureStorageProfile `json:"storageProfile,omitempty"`
	// OSProfile configures the operating system of the VM.
	// +optional
	OSProfile AzureOSProfile `json:"osProfile,omitempty"`
	// NetworkProfile describes the network of the VM.
	// +optional
	NetworkProfile AzureNetworkProfile `json:"networkProfile,omitempty"`
	// AvailabilitySet of the VM. If nil, the VM is in none.
	// +optional
	AvailabilitySet *AzureSubResource `json:"availabilitySet,omitempty"`
	// IdentityID is the identity assigned to the VM. If nil, the VM has none.
	// +optional
	IdentityID *string `json:"identityID,omitempty"`
	// Zone of the VM. If nil, the VM is in no zone.
	// +optional
	Zone *int `json:"zone,omitempty"`
	// MachineSet is the set of VMs that the VM belongs to. If nil, it belongs to none.
	// +optional
	MachineSet *AzureMachineSetConfig `json:"machineSet,omitempty"`
}

// AzureHardwareProfile is the size of a VM.
//
// +kubebuilder:pruning:PreserveUnknownFields
type AzureHardwareProfile struct {
	// VMSize names the size.
	// +optional
	VMSize string `json:"vmSize,omitempty"`
}

// AzureStorageProfile describes the disks of a VM.
//
// +kubebuilder:pruning:PreserveUnknownFields
type AzureStorageProfile struct {
	// ImageReference is the machine image.
	// +optional
	ImageReference AzureImageReference `json:"imageReference,omitempty"`
	// OSDisk is the system disk.
	// +optional
	OSDisk AzureOSDisk `json:"osDisk,omitempty"`
	// DataDisks are the data disks.
	// +optional
	DataDisks []AzureDataDisk `json:"dataDisks,omitempty"`
}

// AzureImageReference names a machine image.
//
// +kubebuilder:pruning:PreserveUnknownFields
type AzureImageReference struct {
	// ID of the image.
	// +optional
	ID string `json:"id,omitempty"`
	// URN of the image, as publisher:offer:sku:version. If nil, ID is used.
	// +optional
	URN *string `json:"urn,omitempty"`
}

// AzureOSDisk describes a system disk.
//
// +kubebuilder:pruning:PreserveUnknownFields
type AzureOSDisk struct {
	// Name of the disk.
	// +optional
	Name string `json:"name,omitempty"`
	// Caching of the disk.
	// +optional
	Caching string `json:"caching,omitempty"`
	// ManagedDisk has the parameters of a managed disk.
	// +optional
	ManagedDisk AzureManagedDiskParameters `json:"managedDisk,omitempty"`
	// DiskSizeGB is the size in GB.
	// +optional
	DiskSizeGB int32 `json:"diskSizeGB,omitempty"`
	// CreateOption is how the disk is created.
	// +optional
	CreateOption string `json:"createOption,omitempty"`
}

// AzureManagedDiskParameters describes a managed disk.
//
// +kubebuilder:pruning:PreserveUnknownFields
type AzureManagedDiskParameters struct {
	// ID of the disk.
	// +optional
	ID string `json:"id,omitempty"`
	// StorageAccountType of the disk.
	// +optional
	StorageAccountType string `json:"storageAccountType,omitempty"`
}

// AzureDataDisk describes a data disk.
//
// +kubebuilder:pruning:PreserveUnknownFields
type AzureDataDisk struct {
	// Name of the disk.
	// +optional
	Name string `json:"name,omitempty"`
	// Lun is the logical unit number of the disk. If nil, the provider's default is used.
	// +optional
	Lun *int32 `json:"lun,omitempty"`
	// Caching of the disk.
	// +optional
	Caching string `json:"caching,omitempty"`
	// StorageAccountType of the disk.
	// +optional
	StorageAccountType string `json:"storageAccountType,omitempty"`
	// DiskSizeGB is the size in GB.
	// +optional
	DiskSizeGB int32 `json:"diskSizeGB,omitempty"`
}

// AzureOSProfile configures an operating system.
//
// +kubebuilder:pruning:PreserveUnknownFields
type AzureOSProfile struct {
	// ComputerName is the host name.
	// +optional
	ComputerName string `json:"computerName,omitempty"`
	// AdminUsername is the name of the administrator.
	// +optional
	AdminUsername string `json:"adminUsername,omitempty"`
	// AdminPassword is the password of the administrator.
	// +optional
	AdminPassword string `json:"adminPassword,omitempty"`
	// CustomData is the user data.
	// +optional
	CustomData string `json:"customData,omitempty"`
	// LinuxConfiguration configures Linux.
	// +optional
	LinuxConfiguration AzureLinuxConfiguration `json:"linuxConfiguration,omitempty"`
}

// AzureLinuxConfiguration configures Linux.
//
// +kubebuilder:pruning:PreserveUnknownFields
type AzureLinuxConfiguration struct {
	// DisablePasswordAuthentication disables logins by password.
	// +optional
	DisablePasswordAuthentication bool `json:"disablePasswordAuthentication,omitempty"`
	// SSH configures SSH.
	// +optional
	SSH AzureSSHConfiguration `json:"ssh,omitempty"`
}

// AzureSSHConfiguration configures SSH.
//
// +kubebuilder:pruning:PreserveUnknownFields
type AzureSSHConfiguration struct {
	// PublicKeys is a public key.
	// +optional
	PublicKeys AzureSSHPublicKey `json:"publicKeys,omitempty"`
}

// AzureSSHPublicKey is a public key.
//
// +kubebuilder:pruning:PreserveUnknownFields
type AzureSSHPublicKey struct {
	// Path of the file in the VM.
	// +optional
	Path string `json:"path,omitempty"`
	// KeyData is the key.
	// +optional
	KeyData string `json:"keyData,omitempty"`
}

// AzureNetworkProfile describes the network of a VM.
//
// +kubebuilder:pruning:PreserveUnknownFields
type AzureNetworkProfile struct {
	// NetworkInterfaces is a network interface.
	// +optional
	NetworkInterfaces AzureNetworkInterfaceReference `json:"networkInterfaces,omitempty"`
	// AcceleratedNetworking requests accelerated networking. If nil, the provider's default is used.
	// +optional
	AcceleratedNetworking *bool `json:"acceleratedNetworking,omitempty"`
}

// AzureNetworkInterfaceReference names a network interface.
//
// +kubebuilder:pruning:PreserveUnknownFields
type AzureNetworkInterfaceReference struct {
	// ID of the interface.
	// +optional
	ID string `json:"id,omitempty"`
	// Properties of the interface. If nil, the provider's default is used.
	// +optional
	Properties *AzureNetworkInterfaceReferenceProperties `json:"properties,omitempty"`
}

// AzureNetworkInterfaceReferenceProperties describes a network interface.
//
// +kubebuilder:pruning:PreserveUnknownFields
type AzureNetworkInterfaceReferenceProperties struct {
	// Primary makes it the primary interface.
	// +optional
	Primary bool `json:"primary,omitempty"`
}

// AzureSubResource names a resource.
//
// +kubebuilder:pruning:PreserveUnknownFields
type AzureSubResource struct {
	// ID of the resource.
	// +optional
	ID string `json:"id,omitempty"`
}

// AzureMachineSetConfig names a set of VMs.
//
// +kubebuilder:pruning:PreserveUnknownFields
type AzureMachineSetConfig struct {
	// ID of the set.
	// +optional
	ID string `json:"id,omitempty"`
	// Kind of the set.
	// +optional
	Kind string `json:"kind,omitempty"`
}

// AzureSubnetInfo names a subnet.
//
// +kubebuilder:pruning:PreserveUnknownFields
type AzureSubnetInfo struct {
	// VnetName is the network.
	// +optional
	VnetName string `json:"vnetName,omitempty"`
	// VnetResourceGroup is the network's resource group. If nil, that of the VMs is used.
	// +optional
	VnetResourceGroup *string `json:"vnetResourceGroup,omitempty"`
	// SubnetName is the subnet.
	// +optional
	SubnetName string `json:"subnetName,omitempty"`
}
