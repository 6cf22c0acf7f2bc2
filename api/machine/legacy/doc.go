// Package legacy holds the kinds of machine classes that MCM had for each provider before
// MachineClass: AWSMachineClass, AzureMachineClass, GCPMachineClass, OpenStackMachineClass,
// AlicloudMachineClass and PacketMachineClass.
//
// They are in the same group and version as MachineClass, machine.sapcloud.io/v1alpha1, but in a
// Go package of their own: nothing but their migration uses them. They have no typed clients.
// Their fields are optional and never checked, and fields that are not known are kept, so that an
// object of any version of MCM can be read.
//
// The source is the documentation of MCM's API.
//
// +kubebuilder:object:generate=true
// +groupName=machine.sapcloud.io
// +versionName=v1alpha1
package legacy
