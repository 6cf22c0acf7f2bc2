// Package v1alpha1 contains the kind of the API group vm.metropolis.monogon.dev:
// VirtualMachine.
//
// The group and the field names are those of Metropolis' first definition of the kind, with additions. One
// field is spelled differently: HypervisorImage, which had no JSON name, is hypervisorImage here.
//
// +kubebuilder:object:generate=true
// +groupName=vm.metropolis.monogon.dev
// +groupGoName=VM
package v1alpha1
