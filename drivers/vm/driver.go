package vm

import (
	"context"
	"fmt"
	"strings"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// DefaultPatience is how long calls wait for a VM if Options does not say otherwise.
const DefaultPatience = 2 * time.Minute

// DefaultSettle is for how long no host may have room, before CreateMachine gives up, if
// Options does not say otherwise.
const DefaultSettle = 2 * time.Second

// Options are the properties of a [Driver]. The zero value serves only classes whose
// Secret has a kubeconfig.
type Options struct {
	// Client reaches the infrastructure cluster of classes whose Secret has no
	// kubeconfig. It must read from the API server, not from a cache, and its scheme
	// must know Secrets, Nodes and VirtualMachines: see NewClient. Nil means that such classes
	// are refused with FailedPrecondition.
	Client client.WithWatch
	// Installation tells several control planes apart that share an infrastructure
	// namespace. It must never change: the driver knows its VMs by it. Empty is a name
	// like any other.
	Installation string
	// Patience is how long CreateMachine waits until the VM has a host, and
	// DeleteMachine until it is gone, if the context does not end sooner. Zero means
	// DefaultPatience.
	Patience time.Duration
	// Settle is for how long the scheduler must find no room before CreateMachine
	// removes the VM again and answers ResourceExhausted. A host that is just coming up
	// has that time. Zero means DefaultSettle.
	Settle time.Duration
	// Clock measures Settle. Nil means the real one.
	Clock clock.Clock
}

// Driver makes VirtualMachine objects for machines. It has no volumes of its own and no
// steps after creation; of the optional interfaces it implements driver.FailureDomains. Make it with
// [New]; it is safe for concurrent use.
type Driver struct {
	options  Options
	clusters clusters
}

var (
	_ driver.Driver         = (*Driver)(nil)
	_ driver.FailureDomains = (*Driver)(nil)
)

// New returns a driver. It makes no request.
func New(options Options) *Driver {
	if options.Patience <= 0 {
		options.Patience = DefaultPatience
	}
	if options.Settle <= 0 {
		options.Settle = DefaultSettle
	}
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	// Only valid UTF-8 survives being written as JSON.
	options.Installation = strings.ToValidUTF8(options.Installation, "?")
	return &Driver{options: options, clusters: clusters{standard: options.Client}}
}

// SeparatesAPIGroups implements driver.APIGroupSeparator.
func (d *Driver) SeparatesAPIGroups() bool { return true }

// CreateMachine implements driver.Driver. It returns when the VM has a host.
//
// If no host has room for Options.Settle, the VM is removed again, and the answer is
// ResourceExhausted with the words of the scheduler. If there is neither a host nor a
// verdict within Options.Patience, the answer is DeadlineExceeded and the VM stays.
func (d *Driver) CreateMachine(ctx context.Context, req *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
	c, err := d.read(request{req.Machine, req.MachineClass, req.Secret, sizesOutOfRange})
	if err != nil {
		return nil, err
	}
	vm, err := d.create(ctx, c)
	if err != nil {
		return nil, coded(fmt.Sprintf("creating VM %s", c.key), err)
	}
	return &driver.CreateMachineResponse{ProviderID: providerID(vm), NodeName: c.nodeName(), Addresses: c.addresses(vm)}, nil
}

// DeleteMachine implements driver.Driver. It returns when the VM is gone, or with
// DeadlineExceeded after Options.Patience.
func (d *Driver) DeleteMachine(ctx context.Context, req *driver.DeleteMachineRequest) (*driver.DeleteMachineResponse, error) {
	c, err := d.read(request{req.Machine, req.MachineClass, req.Secret, sizesInvalid})
	if err != nil {
		return nil, err
	}
	if err := d.delete(ctx, c); err != nil {
		return nil, coded(fmt.Sprintf("deleting VM %s", c.key), err)
	}
	return &driver.DeleteMachineResponse{}, nil
}

// GetMachineStatus implements driver.Driver. A VM that has no host yet, or that is being
// deleted, counts as existing.
func (d *Driver) GetMachineStatus(ctx context.Context, req *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
	c, err := d.read(request{req.Machine, req.MachineClass, req.Secret, sizesInvalid})
	if err != nil {
		return nil, err
	}
	vm, err := c.find(ctx)
	if err != nil {
		return nil, coded(fmt.Sprintf("looking for VM %s", c.key), err)
	}
	if vm == nil {
		return nil, status.Error(codes.NotFound, fmt.Sprintf("there is no VM for %s", c.wanted()))
	}
	return &driver.GetMachineStatusResponse{ProviderID: providerID(vm), NodeName: c.nodeName(), Addresses: c.addresses(vm)}, nil
}

// ListMachines implements driver.Driver. It returns the VMs in the class's pool that this
// installation made for machines in the class's namespace, of the same cluster and role.
func (d *Driver) ListMachines(ctx context.Context, req *driver.ListMachinesRequest) (*driver.ListMachinesResponse, error) {
	c, err := d.readClass(request{nil, req.MachineClass, req.Secret, sizesInvalid})
	if err != nil {
		return nil, err
	}
	machines, err := c.list(ctx)
	if err != nil {
		return nil, coded(fmt.Sprintf("listing VMs in %s", c.key.Namespace), err)
	}
	return &driver.ListMachinesResponse{MachineList: machines}, nil
}
