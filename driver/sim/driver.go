package sim

import (
	"context"
	"fmt"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// Config are the properties of a [Driver]. The zero value is a driver on an empty
// cloud in memory, whose VMs never become nodes.
type Config struct {
	// Cloud that holds the VMs. Nil means a new one in memory.
	Cloud *Cloud
	// Seed and Clock of that new cloud, see CloudOptions. They are not used if Cloud
	// is set, which has its own.
	Seed  uint64
	Clock clock.Clock
	// Nodes writes Node objects (and Leases, see HeartbeatInterval) to the target
	// cluster. A client that does not cache is enough: nothing is read. Nil means
	// that VMs never become nodes.
	Nodes client.Client
	// HeartbeatInterval is the time between two renewals of a node's Lease in
	// kube-node-lease. A kubelet's is 10s. Zero means that nodes are silent after
	// they joined; a node lifecycle controller would turn them to Unknown.
	HeartbeatInterval time.Duration
	// JoinConcurrency is how many nodes are written at a time. Zero means 50.
	JoinConcurrency int
	// RequireInitialize has VMs answer Uninitialized until InitializeMachine was
	// called for them. Otherwise InitializeMachine answers Unimplemented.
	RequireInitialize bool
	// LeaveVanishedNodes keeps the nodes of VMs that vanished as they are. Otherwise
	// they turn to Ready=Unknown, as the node lifecycle controller would do it.
	LeaveVanishedNodes bool
}

// Driver is the simulated driver. It also implements driver.Initializer,
// driver.VolumeIdentifier and driver.FailureDomains. Make it with [New]; nodes join only while Start runs.
type Driver struct {
	config Config
	cloud  *Cloud
	jobs   *scheduler
	// writers holds the names of nodes that are being written.
	writers keyedMutex
	// orders keeps scripted changes of Ready in order.
	orders orders
}

var (
	_ driver.Driver           = (*Driver)(nil)
	_ driver.Initializer      = (*Driver)(nil)
	_ driver.VolumeIdentifier = (*Driver)(nil)
	_ driver.FailureDomains   = (*Driver)(nil)
)

const (
	defaultNamespace       = "default"
	defaultJoinConcurrency = 50
)

// New returns a driver.
func New(config Config) *Driver {
	if config.Cloud == nil {
		config.Cloud = NewCloud(CloudOptions{Seed: config.Seed, Clock: config.Clock})
	}
	if config.JoinConcurrency <= 0 {
		config.JoinConcurrency = defaultJoinConcurrency
	}
	return &Driver{config: config, cloud: config.Cloud, jobs: newScheduler(config.Cloud.clock)}
}

// Cloud returns the cloud that the driver works on.
func (d *Driver) Cloud() *Cloud { return d.cloud }

// SeparatesAPIGroups implements driver.APIGroupSeparator.
func (d *Driver) SeparatesAPIGroups() bool { return true }

// CreateMachine implements driver.Driver.
func (d *Driver) CreateMachine(ctx context.Context, req *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
	var resp *driver.CreateMachineResponse
	err := d.machineCall(ctx, CreateMachine, machineRequest{req.Machine, req.MachineClass}, func(c call) error {
		v, isNew, err := d.cloud.create(d.plan(c, req.MachineClass), c.spec.Capacity)
		if err != nil {
			return err
		}
		if isNew {
			d.cloud.notify(func(d *Driver) { d.planJoin(v) })
		}
		resp = &driver.CreateMachineResponse{ProviderID: v.ProviderID, NodeName: v.NodeName, Addresses: v.addresses()}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// DeleteMachine implements driver.Driver. When it has answered, the VM's node is not
// written any more.
func (d *Driver) DeleteMachine(ctx context.Context, req *driver.DeleteMachineRequest) (*driver.DeleteMachineResponse, error) {
	err := d.machineCall(ctx, DeleteMachine, machineRequest{req.Machine, req.MachineClass}, func(c call) error {
		vms, err := d.cloud.remove(c.wanted(), c.spec.deleteDelay)
		if err != nil {
			return err
		}
		for _, v := range vms {
			// A write that is under way has to end first.
			unlock, err := d.writers.lock(ctx, v.NodeName)
			if err != nil {
				return err
			}
			unlock()
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &driver.DeleteMachineResponse{}, nil
}

// GetMachineStatus implements driver.Driver.
func (d *Driver) GetMachineStatus(ctx context.Context, req *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
	var resp *driver.GetMachineStatusResponse
	err := d.machineCall(ctx, GetMachineStatus, machineRequest{req.Machine, req.MachineClass}, func(c call) error {
		v, err := d.cloud.find(c.wanted())
		if err != nil {
			return err
		}
		resp = &driver.GetMachineStatusResponse{ProviderID: v.ProviderID, NodeName: v.NodeName, Addresses: v.addresses()}
		if !v.Initialized {
			return status.Error(codes.Uninitialized, fmt.Sprintf("VM %s is not initialised", v.ProviderID))
		}
		return nil
	})
	if err != nil && !status.Is(err, codes.Uninitialized) {
		return nil, err
	}
	return resp, err
}

// ListMachines implements driver.Driver.
func (d *Driver) ListMachines(ctx context.Context, req *driver.ListMachinesRequest) (*driver.ListMachinesResponse, error) {
	s, err := parseSpec(req.MachineClass)
	if err != nil {
		return nil, d.answer(ListMachines, "", err)
	}
	resp := &driver.ListMachinesResponse{MachineList: map[string]string{}}
	c := call{method: ListMachines, spec: s}
	err = d.do(ctx, c, func() error {
		vms, err := d.cloud.list(c.owner())
		for _, v := range vms {
			resp.MachineList[v.ProviderID] = v.Machine
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// InitializeMachine implements driver.Initializer.
func (d *Driver) InitializeMachine(ctx context.Context, req *driver.InitializeMachineRequest) (*driver.InitializeMachineResponse, error) {
	if !d.config.RequireInitialize {
		return nil, status.Error(codes.Unimplemented, "simulated VMs need no initialisation")
	}
	var resp *driver.InitializeMachineResponse
	err := d.machineCall(ctx, InitializeMachine, machineRequest{req.Machine, req.MachineClass}, func(c call) error {
		v, err := d.cloud.find(c.wanted())
		if err != nil {
			return err
		}
		v, exists, err := d.cloud.change(v.ProviderID, func(v *VM) { v.Initialized = true })
		if err == nil && !exists {
			err = status.Error(codes.NotFound, "the VM is gone")
		}
		resp = &driver.InitializeMachineResponse{ProviderID: v.ProviderID, NodeName: v.NodeName, Addresses: v.addresses()}
		return err
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// GetVolumeIDs implements driver.VolumeIdentifier: it returns the volume handles of
// CSI volumes, whatever their driver, and leaves others out.
func (d *Driver) GetVolumeIDs(ctx context.Context, req *driver.GetVolumeIDsRequest) (*driver.GetVolumeIDsResponse, error) {
	resp := &driver.GetVolumeIDsResponse{}
	err := d.do(ctx, call{method: GetVolumeIDs}, func() error {
		for _, pv := range req.PVSpecs {
			if pv != nil && pv.CSI != nil {
				resp.VolumeIDs = append(resp.VolumeIDs, pv.CSI.VolumeHandle)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}
