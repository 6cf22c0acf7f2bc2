package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// MillwrightMachine is the infrastructure of a Machine of Cluster API: one VM of a driver.
//
// +genclient
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:storageversion
// +kubebuilder:resource:path=millwrightmachines,scope=Namespaced,categories=cluster-api,shortName=mwm
// +kubebuilder:metadata:labels={"cluster.x-k8s.io/v1beta1=v1alpha1","cluster.x-k8s.io/v1beta2=v1alpha1"}
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.providerID) || self.spec.driver == oldSelf.spec.driver",message="cannot be changed once there is a VM: it would not be found any more",fieldPath=".spec.driver"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.providerID) || (has(self.spec.credentialsSecretRef) == has(oldSelf.spec.credentialsSecretRef) && (!has(self.spec.credentialsSecretRef) || self.spec.credentialsSecretRef == oldSelf.spec.credentialsSecretRef))",message="cannot be changed once there is a VM: it would not be found any more",fieldPath=".spec.credentialsSecretRef"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.providerID) || (has(self.spec.failureDomains) == has(oldSelf.spec.failureDomains) && (!has(self.spec.failureDomains) || self.spec.failureDomains == oldSelf.spec.failureDomains))",message="cannot be changed once there is a VM: it would not be found any more",fieldPath=".spec.failureDomains"
// +kubebuilder:printcolumn:name="Cluster",type=string,JSONPath=`.metadata.labels['cluster\.x-k8s\.io/cluster-name']`,description="Cluster that the machine belongs to"
// +kubebuilder:printcolumn:name="Machine",type=string,JSONPath=`.metadata.ownerReferences[?(@.kind=="Machine")].name`,description="Machine that this is the infrastructure of"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`,description="Whether the VM is there"
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,description="Why it is, or is not"
// +kubebuilder:printcolumn:name="ProviderID",type=string,JSONPath=`.spec.providerID`,description="ID of the VM at the provider"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`,description="Time since the object was created"
// +kubebuilder:printcolumn:name="Driver",type=string,JSONPath=`.spec.driver`,description="Driver that makes the VM",priority=1
// +kubebuilder:printcolumn:name="FailureDomain",type=string,JSONPath=`.status.failureDomain`,description="Where the VM is",priority=1
type MillwrightMachine struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// Spec describes the VM. Once the VM exists, driver, credentialsSecretRef and
	// failureDomains cannot be changed. Changes of providerSpec and machineClassRef have
	// an effect only when Cluster API makes them, to update the machine in place; the
	// webhook refuses others. Changes of other fields have no effect.
	Spec MillwrightMachineSpec `json:"spec"`
	// Status is what is known of the VM.
	// +optional
	Status MillwrightMachineStatus `json:"status,omitempty"`
}

// MillwrightMachineList is a list of MillwrightMachines.
//
// +kubebuilder:object:root=true
type MillwrightMachineList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []MillwrightMachine `json:"items"`
}

// MillwrightMachineSpec describes a VM.
//
// +kubebuilder:validation:XValidation:rule="has(self.providerSpec) != has(self.machineClassRef)",message="exactly one of providerSpec and machineClassRef is required"
type MillwrightMachineSpec struct {
	// ProviderID identifies the VM at the provider. The controller sets it when the VM
	// exists. To create an object for an existing VM, set it from the start.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +optional
	ProviderID string `json:"providerID,omitempty"`
	// FailureDomain is where the VM is. The controller sets it from the Machine before the
	// VM is made, if the Machine names one. If it is set beforehand and the Machine names
	// none, it is where the VM is made.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +optional
	FailureDomain string `json:"failureDomain,omitempty"`
	// Driver names the driver that makes the VM: that of the manager, as in its flag
	// --driver.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Driver string `json:"driver"`
	// ProviderSpec describes the VM. Its format is the driver's, as in a MachineClass.
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	// +optional
	ProviderSpec *runtime.RawExtension `json:"providerSpec,omitempty"`
	// MachineClassRef names a MachineClass in the same namespace, whose providerSpec and
	// Secrets are used. The user data in those Secrets is not.
	// +optional
	MachineClassRef *LocalReference `json:"machineClassRef,omitempty"`
	// CredentialsSecretRef names a Secret in the same namespace with the credentials that
	// the driver needs. Its data overlays that of the MachineClass's Secrets.
	// +optional
	CredentialsSecretRef *LocalReference `json:"credentialsSecretRef,omitempty"`
	// FailureDomains say what is different about a VM in each failure domain. A Machine
	// in a failure domain that is not listed is not made, unless the driver knows how its
	// VMs get into failure domains. An entry needs no more than a name if the driver finds
	// the place by the zone of the node template.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=100
	// +optional
	FailureDomains []Placement `json:"failureDomains,omitempty"`
	// NodeTemplate describes the node that the VM becomes, for drivers that look at it and
	// for autoscalers that scale from zero. Its fields overlay those of the MachineClass's
	// nodeTemplate.
	// +optional
	NodeTemplate *NodeTemplate `json:"nodeTemplate,omitempty"`
}

// LocalReference names an object in the same namespace.
type LocalReference struct {
	// Name of the object.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// Placement says how a VM gets into a failure domain.
type Placement struct {
	// Name of the failure domain.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Name string `json:"name"`
	// ProviderSpec is laid over the VM's providerSpec as a JSON merge patch (RFC 7396).
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	// +optional
	ProviderSpec *runtime.RawExtension `json:"providerSpec,omitempty"`
}

// NodeTemplate describes the node that a VM becomes. All fields are optional.
type NodeTemplate struct {
	// Capacity of the node.
	// +optional
	Capacity corev1.ResourceList `json:"capacity,omitempty"`
	// InstanceType of the node.
	// +optional
	InstanceType string `json:"instanceType,omitempty"`
	// Region of the node.
	// +optional
	Region string `json:"region,omitempty"`
	// Zone of the node. A failure domain takes its place.
	// +optional
	Zone string `json:"zone,omitempty"`
	// Architecture of the node's processor.
	// +optional
	Architecture Architecture `json:"architecture,omitempty"`
	// OperatingSystem of the node.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	OperatingSystem string `json:"operatingSystem,omitempty"`
}

// MillwrightMachineStatus is what is known of a VM.
type MillwrightMachineStatus struct {
	// Ready reports whether the VM was created. Once true, it stays true. Read under
	// contract v1beta1.
	// +kubebuilder:default=false
	Ready bool `json:"ready"`
	// Initialization is the same for contract v1beta2.
	// +optional
	Initialization *Initialization `json:"initialization,omitempty"`
	// ProviderID is the ID that the driver returned. A spec.providerID that differs was
	// changed by a user.
	// +optional
	ProviderID string `json:"providerID,omitempty"`
	// FailureDomain is where the VM is.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +optional
	FailureDomain string `json:"failureDomain,omitempty"`
	// LastKnownState is for the driver: it returns this text, and gets it in its next
	// call.
	// +optional
	LastKnownState string `json:"lastKnownState,omitempty"`
	// FailureReason is set if the specification can never work. Under contract v1beta1 the
	// Machine then stays Failed.
	// +optional
	FailureReason *string `json:"failureReason,omitempty"`
	// FailureMessage explains FailureReason.
	// +optional
	FailureMessage *string `json:"failureMessage,omitempty"`
	// Addresses of the VM as far as the driver knows them.
	// +listType=atomic
	// +optional
	Addresses []MachineAddress `json:"addresses,omitempty"`
	// Conditions: Ready, NodeJoined, Paused, and UpToDate once Cluster API has updated the
	// machine in place.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Initialization is the progress of the first provisioning.
//
// +kubebuilder:validation:MinProperties=1
type Initialization struct {
	// Provisioned reports whether the infrastructure was created. Once true, it stays true.
	// +optional
	Provisioned *bool `json:"provisioned,omitempty"`
}

// MachineAddress is an address of a VM.
type MachineAddress struct {
	// Type of the address.
	// +kubebuilder:validation:Enum=Hostname;ExternalIP;InternalIP;ExternalDNS;InternalDNS
	Type corev1.NodeAddressType `json:"type"`
	// Address itself.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Address string `json:"address"`
}

// MillwrightMachineTemplate is a template for MillwrightMachines. To change the machines,
// create a new one.
//
// +genclient
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:storageversion
// +kubebuilder:resource:path=millwrightmachinetemplates,scope=Namespaced,categories=cluster-api,shortName=mwmt
// +kubebuilder:metadata:labels={"cluster.x-k8s.io/v1beta1=v1alpha1","cluster.x-k8s.io/v1beta2=v1alpha1"}
// +kubebuilder:printcolumn:name="Driver",type=string,JSONPath=`.spec.template.spec.driver`,description="Driver that makes the VMs"
// +kubebuilder:printcolumn:name="CPU",type=string,JSONPath=`.status.capacity.cpu`,description="CPUs of a node"
// +kubebuilder:printcolumn:name="Memory",type=string,JSONPath=`.status.capacity.memory`,description="Memory of a node"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`,description="Time since the object was created"
type MillwrightMachineTemplate struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// Spec holds the template.
	Spec MillwrightMachineTemplateSpec `json:"spec"`
	// Status describes the nodes of the template.
	// +optional
	Status MillwrightMachineTemplateStatus `json:"status,omitempty"`
}

// MillwrightMachineTemplateList is a list of MillwrightMachineTemplates.
//
// +kubebuilder:object:root=true
type MillwrightMachineTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []MillwrightMachineTemplate `json:"items"`
}

// MillwrightMachineTemplateSpec holds the template.
type MillwrightMachineTemplateSpec struct {
	// Template of the MillwrightMachines.
	Template MillwrightMachineTemplateResource `json:"template"`
}

// MillwrightMachineTemplateResource is the template of a MillwrightMachine.
type MillwrightMachineTemplateResource struct {
	// ObjectMeta holds labels and annotations of the MillwrightMachines.
	// +optional
	ObjectMeta ObjectMeta `json:"metadata,omitempty"`
	// Spec of the MillwrightMachines.
	Spec MillwrightMachineSpec `json:"spec"`
}

// ObjectMeta is the metadata of the objects of a template.
type ObjectMeta struct {
	// Labels of the objects.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// Annotations of the objects.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
}

// MillwrightMachineTemplateStatus describes the nodes of a template, for autoscalers that
// scale from zero.
type MillwrightMachineTemplateStatus struct {
	// Capacity of a node.
	// +optional
	Capacity corev1.ResourceList `json:"capacity,omitempty"`
	// NodeInfo of a node.
	// +optional
	NodeInfo *NodeInfo `json:"nodeInfo,omitempty"`
}

// NodeInfo describes the platform of a node.
//
// +kubebuilder:validation:MinProperties=1
type NodeInfo struct {
	// Architecture of the node's processor.
	// +optional
	Architecture Architecture `json:"architecture,omitempty"`
	// OperatingSystem of the node.
	// +optional
	OperatingSystem string `json:"operatingSystem,omitempty"`
}

// Architecture of a processor.
//
// +kubebuilder:validation:Enum=amd64;arm64;s390x;ppc64le
type Architecture string
