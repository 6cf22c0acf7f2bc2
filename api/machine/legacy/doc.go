// Package legacy holds the machine class kinds that MCM had for each provider before MachineClass:
// AWSMachineClass, AzureMachineClass, GCPMachineClass, OpenStackMachineClass, AlicloudMachineClass and
// PacketMachineClass.
//
// They have the group and version of MachineClass, machine.sapcloud.io/v1alpha1, but a Go package of their own,
// since only their migration uses them. They have no typed clients. Their fields are optional and not
// validated, and unknown fields are kept, so that objects of every MCM version can be read.
//
// The source is the documentation of MCM's API.
//
// +kubebuilder:object:generate=true
// +groupName=machine.sapcloud.io
// +versionName=v1alpha1
package legacy
