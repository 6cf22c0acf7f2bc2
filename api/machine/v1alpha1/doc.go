// Package v1alpha1 holds the kinds of the API group machine.sapcloud.io: Machine,
// MachineSet, MachineDeployment and MachineClass.
//
// The JSON form is frozen: it is the one that Gardener's Machine Controller
// Manager (MCM) serves, and objects written by either system are read by both.
// Field names in Go follow MCM's too, also where they differ from their JSON name,
// so that drivers written for MCM compile.
//
// +kubebuilder:object:generate=true
// +groupName=machine.sapcloud.io
package v1alpha1
