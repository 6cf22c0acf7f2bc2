// Package v1alpha1 contains the kinds of the API group infrastructure.millwright.dev, the
// infrastructure of Cluster API's machines: MillwrightMachine, MillwrightCluster and their
// templates.
//
// The same objects serve both contracts of Cluster API, v1beta1 and v1beta2: each ignores
// the fields of the other.
//
// +kubebuilder:object:generate=true
// +groupName=infrastructure.millwright.dev
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupName is the API group of this package.
const GroupName = "infrastructure.millwright.dev"

// Kinds of this package.
const (
	MillwrightClusterKind         = "MillwrightCluster"
	MillwrightClusterTemplateKind = "MillwrightClusterTemplate"
	MillwrightMachineKind         = "MillwrightMachine"
	MillwrightMachineTemplateKind = "MillwrightMachineTemplate"
)

var (
	// SchemeGroupVersion is the group and version of this package's kinds.
	SchemeGroupVersion = schema.GroupVersion{Group: GroupName, Version: "v1alpha1"}
	// SchemeBuilder collects what AddToScheme adds.
	SchemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)
	// AddToScheme adds the kinds of this package to a scheme.
	AddToScheme = SchemeBuilder.AddToScheme
)

// Kind qualifies a kind of this group.
func Kind(kind string) schema.GroupKind {
	return SchemeGroupVersion.WithKind(kind).GroupKind()
}

func addKnownTypes(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(SchemeGroupVersion,
		&MillwrightMachine{}, &MillwrightMachineList{},
		&MillwrightMachineTemplate{}, &MillwrightMachineTemplateList{},
		&MillwrightCluster{}, &MillwrightClusterList{},
		&MillwrightClusterTemplate{}, &MillwrightClusterTemplateList{},
	)
	metav1.AddToGroupVersion(scheme, SchemeGroupVersion)
	return nil
}
