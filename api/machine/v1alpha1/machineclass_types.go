package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// MachineClassKind is the kind in a machine's reference to its class.
const MachineClassKind = "MachineClass"

// MachineClass describes the VMs of machines. It has no spec and no status; its fields are at the top level.
//
// +genclient
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=mcc,categories={mcm,millwright}
// +kubebuilder:printcolumn:name="Driver",type=string,JSONPath=`.provider`,description="Name of the driver"
// +kubebuilder:printcolumn:name="Size",type=string,JSONPath=`.nodeTemplate.instanceType`,description="Instance type of the nodes"
// +kubebuilder:printcolumn:name="Zone",type=string,JSONPath=`.nodeTemplate.zone`,description="Zone of the nodes"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`,description="Time since the object was created"
// +kubebuilder:printcolumn:name="CPU",type=string,JSONPath=`.nodeTemplate.capacity.cpu`,description="CPUs of a node",priority=1
// +kubebuilder:printcolumn:name="Memory",type=string,JSONPath=`.nodeTemplate.capacity.memory`,description="Memory of a node",priority=1
// +kubebuilder:printcolumn:name="Secret",type=string,JSONPath=`.secretRef.name`,description="Secret with the user data",priority=1
type MachineClass struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// NodeTemplate describes the node that a machine of this class becomes, for
	// autoscalers that scale from zero.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	NodeTemplate *NodeTemplate `json:"nodeTemplate,omitempty"`
	// CredentialsSecretRef names a Secret whose data takes precedence over that of SecretRef.
	// +optional
	CredentialsSecretRef *corev1.SecretReference `json:"credentialsSecretRef,omitempty"`
	// ProviderSpec describes the VM. The driver defines its format.
	// +kubebuilder:pruning:PreserveUnknownFields
	ProviderSpec runtime.RawExtension `json:"providerSpec"`
	// Provider is the name of the driver.
	// +optional
	Provider string `json:"provider,omitempty"`
	// SecretRef names the Secret with the user data of the VMs and, unless
	// CredentialsSecretRef is set, the provider's credentials.
	// +optional
	SecretRef *corev1.SecretReference `json:"secretRef,omitempty"`
}

// MachineClassList is a list of MachineClasses.
//
// +kubebuilder:object:root=true
type MachineClassList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []MachineClass `json:"items"`
}

// NodeTemplate describes the node that a machine becomes.
type NodeTemplate struct {
	// Capacity of the node. It should have at least cpu, gpu and memory.
	Capacity corev1.ResourceList `json:"capacity"`
	// VirtualCapacity is added to the node's capacity.
	// +optional
	VirtualCapacity corev1.ResourceList `json:"virtualCapacity,omitempty"`
	// InstanceType of the node.
	InstanceType string `json:"instanceType"`
	// Region of the node.
	Region string `json:"region"`
	// Zone of the node.
	Zone string `json:"zone"`
	// Architecture of the node's processor.
	// +optional
	Architecture *string `json:"architecture,omitempty"`
}
