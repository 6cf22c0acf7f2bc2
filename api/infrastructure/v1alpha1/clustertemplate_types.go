package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MillwrightClusterTemplateKind is the kind of a MillwrightClusterTemplate.
const MillwrightClusterTemplateKind = "MillwrightClusterTemplate"

// MillwrightClusterTemplate is a template for the MillwrightClusters of a ClusterClass.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:resource:path=millwrightclustertemplates,scope=Namespaced,categories=cluster-api,shortName=mwct
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
