// Package v1alpha1 contains the kinds of the API group machine.sapcloud.io: Machine,
// MachineSet, MachineDeployment and MachineClass.
//
// The JSON form is that of Gardener's Machine Controller Manager (MCM) and never changes: both systems can read
// each other's objects. The names of Go fields are MCM's too, so drivers written for MCM compile.
//
// +kubebuilder:object:generate=true
// +groupName=machine.sapcloud.io
package v1alpha1
