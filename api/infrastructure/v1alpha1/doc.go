// Package v1alpha1 holds the kinds of the API group infrastructure.millwright.dev, with
// which Cluster API gets its machines from a driver: MillwrightMachine, MillwrightCluster
// and their templates.
//
// One set of objects serves both contracts of Cluster API, v1beta1 and v1beta2: what one
// of them does not know, it does not read.
//
// +kubebuilder:object:generate=true
// +groupName=infrastructure.millwright.dev
package v1alpha1
