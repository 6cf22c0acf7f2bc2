package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MillwrightMachineTemplateKind is the kind of a MillwrightMachineTemplate.
const MillwrightMachineTemplateKind = "MillwrightMachineTemplate"

// MillwrightMachineTemplate is a template for MillwrightMachines. To change the machines,
// create a new one.
//
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
