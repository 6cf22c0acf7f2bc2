package vm

import (
	"context"
	"fmt"
	"strings"
	"time"

	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// DefaultPatience is the default of Options.Patience.
const DefaultPatience = 2 * time.Minute

// DefaultSettle is the default of Options.Settle.
const DefaultSettle = 2 * time.Second

// Options configure a [Driver]. With the zero value it serves only classes whose Secret has
// a kubeconfig.
type Options struct {
	// Client is for the infrastructure cluster of classes whose Secret has no kubeconfig.
	// It must read from the API server, not from a cache, and its scheme must have
	// Secrets, Nodes and VirtualMachines; see NewClient. If it is nil, such classes are
	// refused with FailedPrecondition.
	Client client.WithWatch
	// Installation distinguishes control planes that share an infrastructure namespace. It
	// must never change: the driver recognises its VMs by it. Empty is a valid value.
	Installation string
	// Patience is how long CreateMachine waits until the VM has a host, and
	// DeleteMachine until it is gone, unless the context ends before. Zero or less means
	// DefaultPatience.
	Patience time.Duration
	// Settle is how long the VM must be unschedulable before CreateMachine deletes it and
	// answers ResourceExhausted. A host that is just starting has that time. Zero or less
	// means DefaultSettle.
	Settle time.Duration
	// Clock measures Settle. Nil means the real one.
	Clock clock.Clock
}

// Driver creates VirtualMachine objects for machines. Of the optional interfaces it
// implements driver.FailureDomains and driver.APIGroupSeparator. Make it with [New]. It may
// be used concurrently.
type Driver struct {
	options  Options
	clusters clusters
}

var (
	_ driver.Driver         = (*Driver)(nil)
	_ driver.FailureDomains = (*Driver)(nil)
)

// New returns a driver. It sends no request.
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
	// Only valid UTF-8 is unchanged after a round trip through JSON.
	options.Installation = strings.ToValidUTF8(options.Installation, "?")
	return &Driver{options: options, clusters: clusters{standard: options.Client, recent: lru.New(maxClients)}}
}

// SeparatesAPIGroups implements driver.APIGroupSeparator.
func (d *Driver) SeparatesAPIGroups() bool { return true }

// CreateMachine implements driver.Driver. It returns when the VM has a host.
//
// If no host has room for the duration of Options.Settle, the VM is deleted, and the answer
// is ResourceExhausted with the message of the scheduler. If it is neither scheduled nor
// unschedulable within Options.Patience, the answer is DeadlineExceeded and the VM stays.
func (d *Driver) CreateMachine(ctx context.Context, req *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
	c, err := d.read(request{req.Machine, req.MachineClass, req.Secret, codes.OutOfRange})
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
	c, err := d.read(request{req.Machine, req.MachineClass, req.Secret, codes.InvalidArgument})
	if err != nil {
		return nil, err
	}
	if err := d.delete(ctx, c); err != nil {
		return nil, coded(fmt.Sprintf("deleting VM %s", c.key), err)
	}
	return &driver.DeleteMachineResponse{}, nil
}

// GetMachineStatus implements driver.Driver. A VM that has no host yet, or is being
// deleted, exists.
func (d *Driver) GetMachineStatus(ctx context.Context, req *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
	c, err := d.read(request{req.Machine, req.MachineClass, req.Secret, codes.InvalidArgument})
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
// installation created for machines of the class's namespace, API group, cluster and role.
func (d *Driver) ListMachines(ctx context.Context, req *driver.ListMachinesRequest) (*driver.ListMachinesResponse, error) {
	c, err := d.readClass(request{nil, req.MachineClass, req.Secret, codes.InvalidArgument})
	if err != nil {
		return nil, err
	}
	machines, err := c.list(ctx)
	if err != nil {
		return nil, coded(fmt.Sprintf("listing VMs in %s", c.key.Namespace), err)
	}
	return &driver.ListMachinesResponse{MachineList: machines}, nil
}
