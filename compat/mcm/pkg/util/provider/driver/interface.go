//go:build !mcm_no_initialize

package driver

import "github.com/millwright-dev/millwright/driver"

// Driver creates, finds and deletes the VMs of one provider. It has the methods that it has in MCM. Type assertions
// find GenerateMachineClassForMigration, which MCM removed from the interface.
//
// Drivers for older versions of MCM, which have no InitializeMachine, compile with the build tag mcm_no_initialize.
// With this tag, InitializeMachine is not a method of the interface, and a type assertion finds it.
type Driver interface {
	driver.Driver
	driver.Initializer
	driver.VolumeIdentifier
}
