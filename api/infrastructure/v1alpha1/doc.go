// Package v1alpha1 contains the kinds of the API group infrastructure.millwright.dev, the
// infrastructure of Cluster API's machines: MillwrightMachine, MillwrightCluster and their
// templates.
//
// The same objects serve both contracts of Cluster API, v1beta1 and v1beta2: each contract ignores the other's
// fields.
//
// +kubebuilder:object:generate=true
// +groupName=infrastructure.millwright.dev
package v1alpha1
