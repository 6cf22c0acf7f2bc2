package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// MillwrightClusterKind is the kind of a MillwrightCluster.
const MillwrightClusterKind = "MillwrightCluster"

// MillwrightCluster is the infrastructure that the machines of a Cluster of Cluster API
// share. Nothing is made for it: it says under which address the API servers are reached,
// and which failure domains there are.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:storageversion
// +kubebuilder:resource:path=millwrightclusters,scope=Namespaced,categories=cluster-api,shortName=mwc
// +kubebuilder:metadata:labels={"cluster.x-k8s.io/v1beta1=v1alpha1","cluster.x-k8s.io/v1beta2=v1alpha1"}
// +kubebuilder:printcolumn:name="Cluster",type=string,JSONPath=`.metadata.labels['cluster\.x-k8s\.io/cluster-name']`,description="Cluster that this is the infrastructure of"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`,description="Whether machines can be made"
// +kubebuilder:printcolumn:name="Host",type=string,JSONPath=`.spec.controlPlaneEndpoint.host`,description="Where the API servers are reached"
// +kubebuilder:printcolumn:name="Port",type=integer,JSONPath=`.spec.controlPlaneEndpoint.port`,description="Port of the API servers"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`,description="Time since the object was created"
type MillwrightCluster struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// Spec is what the machines share.
	// +optional
	Spec MillwrightClusterSpec `json:"spec,omitempty"`
	// Status is what Cluster API reads.
	// +optional
	Status MillwrightClusterStatus `json:"status,omitempty"`
}

// MillwrightClusterList is a list of MillwrightClusters.
//
// +kubebuilder:object:root=true
type MillwrightClusterList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []MillwrightCluster `json:"items"`
}

// MillwrightClusterSpec is what the machines of a Cluster share.
type MillwrightClusterSpec struct {
	// ControlPlaneEndpoint is where the API servers are reached. If neither it nor that of
	// the Cluster is given, the controller sets it once a control plane machine has an
	// address.
	// +optional
	ControlPlaneEndpoint *APIEndpoint `json:"controlPlaneEndpoint,omitempty"`
	// ControlPlanePort is the port of an endpoint that the controller sets.
	// +kubebuilder:default=6443
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +optional
	ControlPlanePort int32 `json:"controlPlanePort,omitempty"`
	// FailureDomains that machines may be placed in. How they get there is said in
	// spec.failureDomains of the MillwrightMachines, or known to the driver.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=100
	// +optional
	FailureDomains []FailureDomain `json:"failureDomains,omitempty"`
	// FailureDomainsFrom has the driver asked for failure domains, every few minutes. They
	// are added to those of failureDomains; where both have one of a name, that of
	// failureDomains counts. Control plane machines may be placed in those of the driver.
	// +optional
	FailureDomainsFrom *FailureDomainSource `json:"failureDomainsFrom,omitempty"`
}

// FailureDomainSource says what a driver is asked for failure domains with.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.providerSpec) && has(self.machineClassRef))",message="at most one of providerSpec and machineClassRef is allowed"
type FailureDomainSource struct {
	// Driver names the driver that is asked: that of the manager, as in its flag --driver.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Driver string `json:"driver"`
	// ProviderSpec is the driver's own description of a VM, as far as its failure domains
	// depend on it.
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	// +optional
	ProviderSpec *runtime.RawExtension `json:"providerSpec,omitempty"`
	// MachineClassRef names a MachineClass in the same namespace, whose providerSpec and
	// Secrets are used.
	// +optional
	MachineClassRef *LocalReference `json:"machineClassRef,omitempty"`
	// CredentialsSecretRef names a Secret in the same namespace with the credentials that
	// the driver needs. Its data overlays that of the MachineClass's Secrets.
	// +optional
	CredentialsSecretRef *LocalReference `json:"credentialsSecretRef,omitempty"`
}

// APIEndpoint is where API servers are reached.
type APIEndpoint struct {
	// Host is a name or an address.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Host string `json:"host"`
	// Port of the API servers.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
}

// FailureDomain is a place that fails as a whole, and others do not fail with it.
type FailureDomain struct {
	// Name of the failure domain.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Name string `json:"name"`
	// ControlPlane reports whether control plane machines may be placed there.
	// +optional
	ControlPlane *bool `json:"controlPlane,omitempty"`
	// Attributes are for users.
	// +optional
	Attributes map[string]string `json:"attributes,omitempty"`
}

// MillwrightClusterStatus is what Cluster API reads.
type MillwrightClusterStatus struct {
	// Ready tells that machines can be made. It is never taken back. Read under contract
	// v1beta1.
	// +kubebuilder:default=false
	Ready bool `json:"ready"`
	// Initialization tells the same to contract v1beta2.
	// +optional
	Initialization *Initialization `json:"initialization,omitempty"`
	// FailureDomains are those of the spec and of the driver. Contract v1beta1 has another form of this
	// field, so it is left out of the definitions for that contract.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=100
	// +optional
	FailureDomains []FailureDomain `json:"failureDomains,omitempty"`
	// Conditions: Ready, ControlPlaneEndpointKnown, FailureDomainsKnown and Paused.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
