// Package driver contains the interface of drivers, at MCM's import path. The requests and responses are those of
// Millwright's package driver, which documents the contract of each method.
package driver

import "github.com/millwright-dev/millwright/driver"

// The requests and responses of the methods.
type (
	CreateMachineRequest                     = driver.CreateMachineRequest
	CreateMachineResponse                    = driver.CreateMachineResponse
	InitializeMachineRequest                 = driver.InitializeMachineRequest
	InitializeMachineResponse                = driver.InitializeMachineResponse
	DeleteMachineRequest                     = driver.DeleteMachineRequest
	DeleteMachineResponse                    = driver.DeleteMachineResponse
	GetMachineStatusRequest                  = driver.GetMachineStatusRequest
	GetMachineStatusResponse                 = driver.GetMachineStatusResponse
	ListMachinesRequest                      = driver.ListMachinesRequest
	ListMachinesResponse                     = driver.ListMachinesResponse
	GetVolumeIDsRequest                      = driver.GetVolumeIDsRequest
	GetVolumeIDsResponse                     = driver.GetVolumeIDsResponse
	GenerateMachineClassForMigrationRequest  = driver.GenerateMachineClassForMigrationRequest
	GenerateMachineClassForMigrationResponse = driver.GenerateMachineClassForMigrationResponse
)
