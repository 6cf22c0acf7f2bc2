package registry

import (
	"context"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

var (
	_ driver.Driver            = (*Registry)(nil)
	_ driver.Initializer       = (*Registry)(nil)
	_ driver.FailureDomains    = (*Registry)(nil)
	_ driver.Locator           = (*Registry)(nil)
	_ driver.Updater           = (*Registry)(nil)
	_ driver.APIGroupSeparator = (*Registry)(nil)
)

// pass passes a request to the driver of its class. The error is Unimplemented if that driver does not implement
// the interface.
func pass[Ability, Request, Response any](ctx context.Context, r *Registry, class *v1alpha1.MachineClass, req *Request,
	method func(Ability, context.Context, *Request) (*Response, error),
) (*Response, error) {
	d, err := r.For(class)
	if err != nil {
		return nil, err
	}
	able, ok := driver.As[Ability](d)
	if !ok {
		return nil, status.Error(codes.Unimplemented, "the driver does not implement this operation")
	}
	return method(able, ctx, req)
}

// CreateMachine implements driver.Driver.
func (r *Registry) CreateMachine(ctx context.Context, req *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
	return pass(ctx, r, req.MachineClass, req, driver.Driver.CreateMachine)
}

// DeleteMachine implements driver.Driver.
func (r *Registry) DeleteMachine(ctx context.Context, req *driver.DeleteMachineRequest) (*driver.DeleteMachineResponse, error) {
	return pass(ctx, r, req.MachineClass, req, driver.Driver.DeleteMachine)
}

// GetMachineStatus implements driver.Driver.
func (r *Registry) GetMachineStatus(ctx context.Context, req *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
	return pass(ctx, r, req.MachineClass, req, driver.Driver.GetMachineStatus)
}

// ListMachines implements driver.Driver.
func (r *Registry) ListMachines(ctx context.Context, req *driver.ListMachinesRequest) (*driver.ListMachinesResponse, error) {
	return pass(ctx, r, req.MachineClass, req, driver.Driver.ListMachines)
}

// InitializeMachine implements driver.Initializer.
func (r *Registry) InitializeMachine(ctx context.Context, req *driver.InitializeMachineRequest) (*driver.InitializeMachineResponse, error) {
	return pass(ctx, r, req.MachineClass, req, driver.Initializer.InitializeMachine)
}

// ListFailureDomains implements driver.FailureDomains.
func (r *Registry) ListFailureDomains(ctx context.Context, req *driver.ListFailureDomainsRequest) (*driver.ListFailureDomainsResponse, error) {
	return pass(ctx, r, req.MachineClass, req, driver.FailureDomains.ListFailureDomains)
}

// PlaceMachine implements driver.FailureDomains.
func (r *Registry) PlaceMachine(ctx context.Context, req *driver.PlaceMachineRequest) (*driver.PlaceMachineResponse, error) {
	return pass(ctx, r, req.MachineClass, req, driver.FailureDomains.PlaceMachine)
}

// LocateMachine implements driver.Locator.
func (r *Registry) LocateMachine(ctx context.Context, req *driver.LocateMachineRequest) (*driver.LocateMachineResponse, error) {
	return pass(ctx, r, req.MachineClass, req, driver.Locator.LocateMachine)
}

// UpdateMachine implements driver.Updater.
func (r *Registry) UpdateMachine(ctx context.Context, req *driver.UpdateMachineRequest) (*driver.UpdateMachineResponse, error) {
	return pass(ctx, r, req.MachineClass, req, driver.Updater.UpdateMachine)
}

// SeparatesAPIGroups reports whether the driver of a class keeps the VMs of API groups apart. d may be a Registry
// or any other driver.
func SeparatesAPIGroups(d driver.Driver, class *v1alpha1.MachineClass) bool {
	r, ok := driver.As[*Registry](d)
	if !ok {
		return driver.SeparatesAPIGroups(d)
	}
	of, err := r.For(class)
	return err == nil && driver.SeparatesAPIGroups(of)
}

// SeparatesAPIGroups implements driver.APIGroupSeparator. It reports whether all drivers do; the function of the
// same name is for one class.
func (r *Registry) SeparatesAPIGroups() bool {
	all := r.entries()
	for _, e := range all {
		if !driver.SeparatesAPIGroups(e.driver) {
			return false
		}
	}
	return len(all) > 0
}
