package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// MillwrightMachine is the infrastructure of a Cluster API Machine: one VM of a driver.
//
// +genclient
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:storageversion
// +kubebuilder:resource:path=millwrightmachines,scope=Namespaced,categories={cluster-api,millwright},shortName=mwm
// +kubebuilder:metadata:labels={"cluster.x-k8s.io/v1beta1=v1alpha1","cluster.x-k8s.io/v1beta2=v1alpha1"}
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.providerID) || self.spec.driver == oldSelf.spec.driver",message="cannot be changed once the VM exists: the driver could no longer find it",fieldPath=".spec.driver"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.providerID) || (has(self.spec.credentialsSecretRef) == has(oldSelf.spec.credentialsSecretRef) && (!has(self.spec.credentialsSecretRef) || self.spec.credentialsSecretRef == oldSelf.spec.credentialsSecretRef))",message="cannot be changed once the VM exists: the driver could no longer find it",fieldPath=".spec.credentialsSecretRef"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.providerID) || (has(self.spec.failureDomains) == has(oldSelf.spec.failureDomains) && (!has(self.spec.failureDomains) || self.spec.failureDomains == oldSelf.spec.failureDomains))",message="cannot be changed once the VM exists: the driver could no longer find it",fieldPath=".spec.failureDomains"
// +kubebuilder:printcolumn:name="Cluster",type=string,JSONPath=`.metadata.labels['cluster\.x-k8s\.io/cluster-name']`,description="Cluster that the machine belongs to"
// +kubebuilder:printcolumn:name="Machine",type=string,JSONPath=`.metadata.ownerReferences[?(@.kind=="Machine")].name`,description="Machine that this infrastructure belongs to"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`,description="Whether the VM exists"
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,description="Why the VM is or is not ready"
// +kubebuilder:printcolumn:name="ProviderID",type=string,JSONPath=`.spec.providerID`,description="ID of the VM at the provider"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`,description="Time since the object was created"
// +kubebuilder:printcolumn:name="Driver",type=string,JSONPath=`.spec.driver`,description="Driver that creates the VM",priority=1
// +kubebuilder:printcolumn:name="FailureDomain",type=string,JSONPath=`.status.failureDomain`,description="Failure domain of the VM",priority=1
type MillwrightMachine struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// Spec describes the VM. Once the VM exists, driver, credentialsSecretRef and failureDomains cannot be
	// changed. Changes of providerSpec and machineClassRef have an effect only when Cluster API makes them, to
	// update the machine in place; the webhook rejects others. Changes of other fields have no effect.
	Spec MillwrightMachineSpec `json:"spec"`
	// Status is the observed state of the VM.
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
	// ProviderID identifies the VM at the provider. The controller sets it when the VM exists. To adopt an
	// existing VM, set it when you create the object.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +optional
	ProviderID string `json:"providerID,omitempty"`
	// FailureDomain is the failure domain of the VM. If the Machine names one, the controller copies it here
	// before it creates the VM. If the Machine names none, the VM is created in the failure domain that is set
	// here.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +optional
	FailureDomain string `json:"failureDomain,omitempty"`
	// Driver is the name of the driver that creates the VM. It must be the manager's driver, as in its flag
	// --driver.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Driver string `json:"driver"`
	// ProviderSpec describes the VM. The driver defines its format, as in a MachineClass.
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	// +optional
	ProviderSpec *runtime.RawExtension `json:"providerSpec,omitempty"`
	// MachineClassRef names a MachineClass in the same namespace, whose providerSpec and Secrets are used. The
	// user data in those Secrets is ignored.
	// +optional
	MachineClassRef *LocalReference `json:"machineClassRef,omitempty"`
	// CredentialsSecretRef names a Secret in the same namespace with the credentials that the driver needs. Its
	// data takes precedence over that of the MachineClass's Secrets.
	// +optional
	CredentialsSecretRef *LocalReference `json:"credentialsSecretRef,omitempty"`
	// FailureDomains describes how a VM differs in each failure domain. If the Machine's failure domain is not
	// listed, no VM is created, unless the driver knows how to place VMs in failure domains. An entry needs
	// only a name if the driver derives the placement from the zone of the node template.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=100
	// +optional
	FailureDomains []Placement `json:"failureDomains,omitempty"`
	// NodeTemplate describes the node that the VM becomes, for drivers that use it and for autoscalers that
	// scale from zero. Its fields take precedence over the nodeTemplate of the MachineClass.
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

// Placement describes how to place a VM in a failure domain.
type Placement struct {
	// Name of the failure domain.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Name string `json:"name"`
	// ProviderSpec is applied to the VM's providerSpec as a JSON merge patch (RFC 7396).
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
	// Zone of the node. If the machine has a failure domain, that is used instead.
	// +optional
	Zone string `json:"zone,omitempty"`
	// Architecture of the node's processor: "amd64", "arm64", "s390x" or "ppc64le".
	// +optional
	Architecture Architecture `json:"architecture,omitempty"`
	// OperatingSystem of the node.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	OperatingSystem string `json:"operatingSystem,omitempty"`
}

// MillwrightMachineStatus is the observed state of a VM.
type MillwrightMachineStatus struct {
	// Ready reports whether the VM was created. Once true, it stays true. Cluster API reads it under contract
	// v1beta1.
	// +kubebuilder:default=false
	Ready bool `json:"ready"`
	// Initialization reports the same under contract v1beta2.
	// +optional
	Initialization *Initialization `json:"initialization,omitempty"`
	// ProviderID is the ID that the driver returned. If spec.providerID differs, a user changed it.
	// +optional
	ProviderID string `json:"providerID,omitempty"`
	// FailureDomain is the failure domain of the VM.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +optional
	FailureDomain string `json:"failureDomain,omitempty"`
	// LastKnownState is opaque text that the driver returns and receives again in its next call.
	// +optional
	LastKnownState string `json:"lastKnownState,omitempty"`
	// FailureReason is set if the specification can never work. Under contract v1beta1, the Machine then stays
	// Failed.
	// +optional
	FailureReason *string `json:"failureReason,omitempty"`
	// FailureMessage explains FailureReason.
	// +optional
	FailureMessage *string `json:"failureMessage,omitempty"`
	// Addresses of the VM that the driver has reported.
	// +listType=atomic
	// +optional
	Addresses []MachineAddress `json:"addresses,omitempty"`
	// Conditions are Ready, NodeJoined, Paused and, once Cluster API has updated the machine in place,
	// UpToDate.
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
	// Type of the address: "Hostname", "ExternalIP", "InternalIP", "ExternalDNS" or "InternalDNS".
	// +kubebuilder:validation:Enum=Hostname;ExternalIP;InternalIP;ExternalDNS;InternalDNS
	Type corev1.NodeAddressType `json:"type"`
	// Address is the IP address or DNS name.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Address string `json:"address"`
}

// MillwrightMachineTemplate is a template for MillwrightMachines. It cannot be changed: to change the machines,
// create a new template.
//
// +genclient
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:storageversion
// +kubebuilder:resource:path=millwrightmachinetemplates,scope=Namespaced,categories={cluster-api,millwright},shortName=mwmt
// +kubebuilder:metadata:labels={"cluster.x-k8s.io/v1beta1=v1alpha1","cluster.x-k8s.io/v1beta2=v1alpha1"}
// +kubebuilder:printcolumn:name="Driver",type=string,JSONPath=`.spec.template.spec.driver`,description="Driver that creates the VMs"
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
	// Architecture of the node's processor: "amd64", "arm64", "s390x" or "ppc64le".
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
