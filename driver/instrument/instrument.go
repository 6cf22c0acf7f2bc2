// Package instrument decorates drivers.
//
// [Wrap] returns a driver whose calls have a deadline, are measured, logged and traced, and cannot terminate the process:
//
//   - A panic becomes an error with the code Internal; its stack is logged.
//   - A nil response without an error, or next to Uninitialized, becomes an error with the code Internal. So does
//     an error with the code OK.
//   - An error without a code gets the code DeadlineExceeded or Canceled if the context of the call caused it.
//   - Values of the request's Secret are replaced by "[redacted]" in the returned error and in the log. The error
//     keeps its code, and errors.Is works as before.
//
// All other results are returned unchanged.
package instrument

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/utils/clock"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// DefaultTimeout is the default of Options.Timeout. It is long because many drivers wait in DeleteMachine until the
// VM is gone.
const DefaultTimeout = 10 * time.Minute

// Options configure the decorator.
type Options struct {
	// Provider is the value of the metric label "provider", for example "aws".
	Provider string
	// Timeout is the maximum duration of each call; the caller may set an earlier deadline. If it is zero or
	// negative, DefaultTimeout is used. A driver that ignores its context is not stopped.
	Timeout time.Duration
	// Registerer registers the metrics. Several decorators may share one. If nil, there are no metrics.
	Registerer prometheus.Registerer
	// Tracer starts a span for each call. The spans have the operation, the names of the Machine and the class, and the
	// code; they begin traces of their own unless the caller's context has a span. If nil, there are no spans.
	Tracer trace.Tracer
	// Clock measures durations. If nil, the real clock is used.
	Clock clock.PassiveClock
}

// Driver is a decorated driver. It implements all optional interfaces of package driver that have calls. If the
// inner driver does not implement an interface, its methods return Unimplemented, which has the same meaning.
type Driver struct {
	inner   driver.Driver
	options Options
	metrics *metrics
}

var (
	_ driver.Driver           = (*Driver)(nil)
	_ driver.Initializer      = (*Driver)(nil)
	_ driver.VolumeIdentifier = (*Driver)(nil)
	_ driver.ClassMigrator    = (*Driver)(nil)
	_ driver.FailureDomains   = (*Driver)(nil)
	_ driver.Locator          = (*Driver)(nil)
	_ driver.Updater          = (*Driver)(nil)
)

// Values of the metric label "operation", as MCM's drivers use them. MCM has no values for
// GenerateMachineClassForMigration, ListFailureDomains, LocateMachine and UpdateMachine.
const (
	opCreate     = "create_machine"
	opInitialize = "initialize_machine"
	opDelete     = "delete_machine"
	opStatus     = "get_machine_status"
	opList       = "list_machine"
	opVolumes    = "get_volume_ids"
	opMigrate    = "generate_machine_class_for_migration"
	opDomains    = "list_failure_domains"
	opLocate     = "locate_machine"
	opUpdate     = "update_machine"
)

// Wrap returns a decorated driver. It panics if other metrics are registered under the names that it needs.
func Wrap(d driver.Driver, options Options) *Driver {
	if options.Timeout <= 0 {
		options.Timeout = DefaultTimeout
	}
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	return &Driver{inner: d, options: options, metrics: newMetrics(options.Registerer, options.Provider)}
}

// Unwrap returns the inner driver, for driver.As.
func (d *Driver) Unwrap() driver.Driver { return d.inner }

// CreateMachine implements driver.Driver.
func (d *Driver) CreateMachine(ctx context.Context, req *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
	return invoke(ctx, d, call{operation: opCreate, machine: req.Machine, class: req.MachineClass, secret: req.Secret}, req, d.inner.CreateMachine)
}

// DeleteMachine implements driver.Driver.
func (d *Driver) DeleteMachine(ctx context.Context, req *driver.DeleteMachineRequest) (*driver.DeleteMachineResponse, error) {
	return invoke(ctx, d, call{operation: opDelete, machine: req.Machine, class: req.MachineClass, secret: req.Secret}, req, d.inner.DeleteMachine)
}

// GetMachineStatus implements driver.Driver.
func (d *Driver) GetMachineStatus(ctx context.Context, req *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
	return invoke(ctx, d, call{operation: opStatus, machine: req.Machine, class: req.MachineClass, secret: req.Secret}, req, d.inner.GetMachineStatus)
}

// ListMachines implements driver.Driver.
func (d *Driver) ListMachines(ctx context.Context, req *driver.ListMachinesRequest) (*driver.ListMachinesResponse, error) {
	return invoke(ctx, d, call{operation: opList, class: req.MachineClass, secret: req.Secret}, req, d.inner.ListMachines)
}

// InitializeMachine implements driver.Initializer.
func (d *Driver) InitializeMachine(ctx context.Context, req *driver.InitializeMachineRequest) (*driver.InitializeMachineResponse, error) {
	inner, err := able[driver.Initializer](d, "InitializeMachine")
	if err != nil {
		return nil, err
	}
	return invoke(ctx, d, call{operation: opInitialize, machine: req.Machine, class: req.MachineClass, secret: req.Secret}, req, inner.InitializeMachine)
}

// GetVolumeIDs implements driver.VolumeIdentifier.
func (d *Driver) GetVolumeIDs(ctx context.Context, req *driver.GetVolumeIDsRequest) (*driver.GetVolumeIDsResponse, error) {
	inner, err := able[driver.VolumeIdentifier](d, "GetVolumeIDs")
	if err != nil {
		return nil, err
	}
	return invoke(ctx, d, call{operation: opVolumes}, req, inner.GetVolumeIDs)
}

// GenerateMachineClassForMigration implements driver.ClassMigrator.
func (d *Driver) GenerateMachineClassForMigration(ctx context.Context, req *driver.GenerateMachineClassForMigrationRequest) (*driver.GenerateMachineClassForMigrationResponse, error) {
	inner, err := able[driver.ClassMigrator](d, "GenerateMachineClassForMigration")
	if err != nil {
		return nil, err
	}
	return invoke(ctx, d, call{operation: opMigrate, class: req.MachineClass}, req, inner.GenerateMachineClassForMigration)
}

// ListFailureDomains implements driver.FailureDomains.
func (d *Driver) ListFailureDomains(ctx context.Context, req *driver.ListFailureDomainsRequest) (*driver.ListFailureDomainsResponse, error) {
	inner, err := able[driver.FailureDomains](d, "ListFailureDomains")
	if err != nil {
		return nil, err
	}
	return invoke(ctx, d, call{operation: opDomains, class: req.MachineClass, secret: req.Secret}, req, inner.ListFailureDomains)
}

// PlaceMachine implements driver.FailureDomains. It sends no request to the provider, so it has no deadline and is
// neither measured nor logged.
func (d *Driver) PlaceMachine(ctx context.Context, req *driver.PlaceMachineRequest) (*driver.PlaceMachineResponse, error) {
	inner, err := able[driver.FailureDomains](d, "PlaceMachine")
	if err != nil {
		return nil, err
	}
	resp, _, err := guarded(func() (*driver.PlaceMachineResponse, error) { return inner.PlaceMachine(ctx, req) })
	return resp, checked(ctx, "", resp == nil, err)
}

// LocateMachine implements driver.Locator.
func (d *Driver) LocateMachine(ctx context.Context, req *driver.LocateMachineRequest) (*driver.LocateMachineResponse, error) {
	inner, err := able[driver.Locator](d, "LocateMachine")
	if err != nil {
		return nil, err
	}
	return invoke(ctx, d, call{operation: opLocate, machine: req.Machine, class: req.MachineClass, secret: req.Secret}, req, inner.LocateMachine)
}

// UpdateMachine implements driver.Updater.
func (d *Driver) UpdateMachine(ctx context.Context, req *driver.UpdateMachineRequest) (*driver.UpdateMachineResponse, error) {
	inner, err := able[driver.Updater](d, "UpdateMachine")
	if err != nil {
		return nil, err
	}
	return invoke(ctx, d, call{operation: opUpdate, machine: req.Machine, class: req.MachineClass, secret: req.Secret}, req, inner.UpdateMachine)
}

// able returns the inner driver as an optional interface. If the driver does not implement it, the error is
// Unimplemented, and there is no call to measure or log.
func able[Ability any](d *Driver, method string) (Ability, error) {
	inner, ok := driver.As[Ability](d.inner)
	if !ok {
		return inner, status.Error(codes.Unimplemented, "the driver does not implement "+method)
	}
	return inner, nil
}
