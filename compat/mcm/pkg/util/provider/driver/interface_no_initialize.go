//go:build mcm_no_initialize

package driver

import "github.com/millwright-dev/millwright/driver"

// Driver creates, finds and deletes the VMs of one provider. It has the methods that the drivers for all versions of
// MCM have. Type assertions find the other methods: InitializeMachine and GenerateMachineClassForMigration.
type Driver interface {
	driver.Driver
	driver.VolumeIdentifier
}
