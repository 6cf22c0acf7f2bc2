// Package controller contains the names that the machine controller reads and writes and that providers use, at MCM's
// import path. It does not contain the controller.
package controller

import "github.com/millwright-dev/millwright/api/machine/v1alpha1"

// Finalizers.
const (
	// MCMFinalizerName is the finalizer of Machines, MachineSets, MachineDeployments and MachineClasses.
	MCMFinalizerName = v1alpha1.FinalizerMCM
	// MCFinalizerName is the finalizer of the Secrets of MachineClasses.
	MCFinalizerName = v1alpha1.FinalizerSecret
	// NodeFinalizerName is the finalizer of nodes. A provider that creates its nodes itself may set it.
	NodeFinalizerName = v1alpha1.FinalizerNode
)

// Placeholders in the user data of a class, which the machine controller replaces for each machine.
const (
	// BootstrapTokenPlaceholder is replaced by a new bootstrap token.
	BootstrapTokenPlaceholder = "<<BOOTSTRAP_TOKEN>>"
	// MachineNamePlaceholder is replaced by the name of the machine.
	MachineNamePlaceholder = "<<MACHINE_NAME>>"
)
