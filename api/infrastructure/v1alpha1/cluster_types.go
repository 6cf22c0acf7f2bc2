package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// MillwrightCluster is the infrastructure that all machines of a Cluster API Cluster share: the address of the
// API servers and the failure domains. It creates nothing at the provider.
//
// +genclient
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:storageversion
// +kubebuilder:resource:path=millwrightclusters,scope=Namespaced,categories={cluster-api,millwright},shortName=mwc
// +kubebuilder:metadata:labels={"cluster.x-k8s.io/v1beta1=v1alpha1","cluster.x-k8s.io/v1beta2=v1alpha1"}
// +kubebuilder:printcolumn:name="Cluster",type=string,JSONPath=`.metadata.labels['cluster\.x-k8s\.io/cluster-name']`,description="Cluster that this infrastructure belongs to"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`,description="Whether machines can be created"
// +kubebuilder:printcolumn:name="Host",type=string,JSONPath=`.spec.controlPlaneEndpoint.host`,description="Host of the API servers"
// +kubebuilder:printcolumn:name="Port",type=integer,JSONPath=`.spec.controlPlaneEndpoint.port`,description="Port of the API servers"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`,description="Time since the object was created"
type MillwrightCluster struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// Spec describes what the machines share.
	// +optional
	Spec MillwrightClusterSpec `json:"spec,omitempty"`
	// Status reports what Cluster API reads.
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

// MillwrightClusterSpec describes what the machines of a Cluster share.
type MillwrightClusterSpec struct {
	// ControlPlaneEndpoint is the address of the API servers. If neither this field nor the Cluster's is set,
	// the controller sets it when a control plane machine has an address; with controlPlaneLoadBalancer, the
	// load balancer sets it immediately.
	// +optional
	ControlPlaneEndpoint *APIEndpoint `json:"controlPlaneEndpoint,omitempty"`
	// ControlPlaneLoadBalancer makes a Millwright load balancer choose the endpoint, if none is set, and
	// forward its connections to the control plane machines. If the endpoint is set, the load balancer listens
	// on its port, and you must make sure that its host resolves to the load balancer. If this field is unset,
	// no load balancer is used.
	// +optional
	ControlPlaneLoadBalancer *ControlPlaneLoadBalancer `json:"controlPlaneLoadBalancer,omitempty"`
	// ControlPlanePort is the port of an endpoint that the controller sets. With controlPlaneLoadBalancer, it
	// is the port of the API servers on the machines.
	// +kubebuilder:default=6443
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +optional
	ControlPlanePort int32 `json:"controlPlanePort,omitempty"`
	// FailureDomains lists the failure domains in which machines may be created. The provider specification for
	// each one comes from spec.failureDomains of the MillwrightMachines or from the driver.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=100
	// +optional
	FailureDomains []FailureDomain `json:"failureDomains,omitempty"`
	// FailureDomainsFrom queries the driver for failure domains every few minutes and adds them to
	// failureDomains. If both have a failure domain of the same name, the one in failureDomains is used.
	// Control plane machines may be placed in failure domains from the driver.
	// +optional
	FailureDomainsFrom *FailureDomainSource `json:"failureDomainsFrom,omitempty"`
}

// FailureDomainSource configures how a driver is queried for its failure domains.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.providerSpec) && has(self.machineClassRef))",message="at most one of providerSpec and machineClassRef is allowed"
type FailureDomainSource struct {
	// Driver is the name of the manager's driver, as in its flag --driver.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Driver string `json:"driver"`
	// ProviderSpec describes a VM, as far as the failure domains depend on it. The driver defines its format.
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	// +optional
	ProviderSpec *runtime.RawExtension `json:"providerSpec,omitempty"`
	// MachineClassRef names a MachineClass in the same namespace, whose providerSpec and
	// Secrets are used.
	// +optional
	MachineClassRef *LocalReference `json:"machineClassRef,omitempty"`
	// CredentialsSecretRef names a Secret in the same namespace with the credentials that the driver needs. Its
	// data takes precedence over that of the MachineClass's Secrets.
	// +optional
	CredentialsSecretRef *LocalReference `json:"credentialsSecretRef,omitempty"`
}

// DefaultLoadBalancer is the name of a load balancer if none is given.
const DefaultLoadBalancer = "default"

// ControlPlaneLoadBalancer names a load balancer.
type ControlPlaneLoadBalancer struct {
	// Name is the name of the load balancer, as in the flag --name of "millwright load-balancer". Defaults to
	// "default".
	// +kubebuilder:default=default
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Name string `json:"name,omitempty"`
}

// APIEndpoint is the address of API servers.
type APIEndpoint struct {
	// Host is a DNS name or an IP address.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Host string `json:"host"`
	// Port of the API servers.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
}

// FailureDomain is a part of the infrastructure that fails independently of others.
type FailureDomain struct {
	// Name of the failure domain.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Name string `json:"name"`
	// ControlPlane reports whether control plane machines may be placed there.
	// +optional
	ControlPlane *bool `json:"controlPlane,omitempty"`
	// Attributes are arbitrary information for users.
	// +optional
	Attributes map[string]string `json:"attributes,omitempty"`
}

// MillwrightClusterStatus reports what Cluster API reads.
type MillwrightClusterStatus struct {
	// Ready reports whether machines can be created. Once true, it stays true. Cluster API reads it under
	// contract v1beta1.
	// +kubebuilder:default=false
	Ready bool `json:"ready"`
	// Initialization reports the same under contract v1beta2.
	// +optional
	Initialization *Initialization `json:"initialization,omitempty"`
	// FailureDomains are those of the spec and of the driver. Contract v1beta1 defines this field as a map by
	// their names, and so do the CRDs for that contract.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=100
	// +optional
	FailureDomains []FailureDomain `json:"failureDomains,omitempty"`
	// Conditions are Ready, ControlPlaneEndpointKnown, LoadBalancerReady, FailureDomainsKnown and Paused.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// MillwrightClusterTemplate is a template for the MillwrightClusters of a ClusterClass.
//
// +genclient
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:resource:path=millwrightclustertemplates,scope=Namespaced,categories={cluster-api,millwright},shortName=mwct
// +kubebuilder:metadata:labels={"cluster.x-k8s.io/v1beta1=v1alpha1","cluster.x-k8s.io/v1beta2=v1alpha1"}
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`,description="Time since the object was created"
type MillwrightClusterTemplate struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// Spec holds the template.
	Spec MillwrightClusterTemplateSpec `json:"spec"`
}

// MillwrightClusterTemplateList is a list of MillwrightClusterTemplates.
//
// +kubebuilder:object:root=true
type MillwrightClusterTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []MillwrightClusterTemplate `json:"items"`
}

// MillwrightClusterTemplateSpec holds the template.
type MillwrightClusterTemplateSpec struct {
	// Template of the MillwrightClusters.
	Template MillwrightClusterTemplateResource `json:"template"`
}

// MillwrightClusterTemplateResource is the template of a MillwrightCluster.
type MillwrightClusterTemplateResource struct {
	// ObjectMeta holds labels and annotations of the MillwrightClusters.
	// +optional
	ObjectMeta ObjectMeta `json:"metadata,omitempty"`
	// Spec of the MillwrightClusters.
	// +optional
	Spec MillwrightClusterSpec `json:"spec,omitempty"`
}
