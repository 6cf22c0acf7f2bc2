package conformance_test

import (
	"context"

	"github.com/millwright-dev/millwright/driver"
)

// Signatures of driver methods.
type (
	create     = func(context.Context, *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error)
	remove     = func(context.Context, *driver.DeleteMachineRequest) (*driver.DeleteMachineResponse, error)
	find       = func(context.Context, *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error)
	list       = func(context.Context, *driver.ListMachinesRequest) (*driver.ListMachinesResponse, error)
	initialize = func(context.Context, *driver.InitializeMachineRequest) (*driver.InitializeMachineResponse, error)
	volumes    = func(context.Context, *driver.GetVolumeIDsRequest) (*driver.GetVolumeIDsResponse, error)
	domains    = func(context.Context, *driver.ListFailureDomainsRequest) (*driver.ListFailureDomainsResponse, error)
	place      = func(context.Context, *driver.PlaceMachineRequest) (*driver.PlaceMachineResponse, error)
	locate     = func(context.Context, *driver.LocateMachineRequest) (*driver.LocateMachineResponse, error)
	update     = func(context.Context, *driver.UpdateMachineRequest) (*driver.UpdateMachineResponse, error)
	migrate    = func(context.Context, *driver.GenerateMachineClassForMigrationRequest) (*driver.GenerateMachineClassForMigrationResponse, error)
)

// patched is a driver with some methods replaced.
type patched struct {
	full
	create     create
	remove     remove
	find       find
	list       list
	initialize initialize
	optional
}

type optional struct {
	volumes volumes
	domains domains
	place   place
	locate  locate
	update  update
	migrate migrate
}

// patch replaces methods of a world's driver.
func patch(w *world, change func(*patched)) full {
	p := &patched{
		full: w.full, create: w.CreateMachine, remove: w.DeleteMachine, find: w.GetMachineStatus, list: w.ListMachines, initialize: w.InitializeMachine,
		optional: optional{w.GetVolumeIDs, w.ListFailureDomains, w.PlaceMachine, w.LocateMachine, w.UpdateMachine, w.GenerateMachineClassForMigration},
	}
	change(p)
	return p
}

func (p *patched) CreateMachine(ctx context.Context, req *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
	return p.create(ctx, req)
}

func (p *patched) DeleteMachine(ctx context.Context, req *driver.DeleteMachineRequest) (*driver.DeleteMachineResponse, error) {
	return p.remove(ctx, req)
}

func (p *patched) GetMachineStatus(ctx context.Context, req *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
	return p.find(ctx, req)
}

func (p *patched) ListMachines(ctx context.Context, req *driver.ListMachinesRequest) (*driver.ListMachinesResponse, error) {
	return p.list(ctx, req)
}

func (p *patched) InitializeMachine(ctx context.Context, req *driver.InitializeMachineRequest) (*driver.InitializeMachineResponse, error) {
	return p.initialize(ctx, req)
}

func (p *patched) GetVolumeIDs(ctx context.Context, req *driver.GetVolumeIDsRequest) (*driver.GetVolumeIDsResponse, error) {
	return p.volumes(ctx, req)
}

func (p *patched) ListFailureDomains(ctx context.Context, req *driver.ListFailureDomainsRequest) (*driver.ListFailureDomainsResponse, error) {
	return p.domains(ctx, req)
}

func (p *patched) PlaceMachine(ctx context.Context, req *driver.PlaceMachineRequest) (*driver.PlaceMachineResponse, error) {
	return p.place(ctx, req)
}

func (p *patched) LocateMachine(ctx context.Context, req *driver.LocateMachineRequest) (*driver.LocateMachineResponse, error) {
	return p.locate(ctx, req)
}

func (p *patched) UpdateMachine(ctx context.Context, req *driver.UpdateMachineRequest) (*driver.UpdateMachineResponse, error) {
	return p.update(ctx, req)
}

func (p *patched) GenerateMachineClassForMigration(ctx context.Context, req *driver.GenerateMachineClassForMigrationRequest) (*driver.GenerateMachineClassForMigrationResponse, error) {
	return p.migrate(ctx, req)
}
