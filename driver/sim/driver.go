package sim

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/sim/internal/migrate"
	"github.com/millwright-dev/millwright/driver/sim/internal/spec"
	"github.com/millwright-dev/millwright/driver/status"
)

// Config configures a [Driver]. The zero value configures a driver with an empty cloud in memory whose VMs never
// become nodes.
type Config struct {
	// Cloud contains the VMs. If nil, a new cloud in memory is used.
	Cloud *Cloud
	// Seed of the new cloud, see CloudOptions. It is ignored if Cloud is set.
	Seed uint64
	// Nodes writes Nodes to the target cluster and, if HeartbeatInterval is set, also Leases. It does not need a
	// cache, since only agents read, once a second. If nil, VMs never become nodes.
	Nodes client.Client
	// HeartbeatInterval is the interval at which a node's Lease in kube-node-lease is renewed; kubelets use 10s. If
	// zero, Leases are never renewed, and a node lifecycle controller would set the nodes to Ready=Unknown.
	HeartbeatInterval time.Duration
	// RequireInitialize makes GetMachineStatus return Uninitialized until InitializeMachine has been called for the
	// VM. If false, InitializeMachine returns Unimplemented.
	RequireInitialize bool
}

// Driver is the simulated driver. It also implements driver.Initializer, driver.VolumeIdentifier,
// driver.FailureDomains, driver.Locator, driver.Updater and driver.ClassMigrator. Create it with [New]. Nodes join
// only while Start runs. All methods may be called concurrently.
type Driver struct {
	config Config
	cloud  *Cloud
	// kubelets is nil if VMs never become nodes.
	kubelets *kubelets
}

var (
	_ driver.Driver           = (*Driver)(nil)
	_ driver.Initializer      = (*Driver)(nil)
	_ driver.VolumeIdentifier = (*Driver)(nil)
	_ driver.FailureDomains   = (*Driver)(nil)
	_ driver.Locator          = (*Driver)(nil)
	_ driver.Updater          = (*Driver)(nil)
	_ driver.ClassMigrator    = (*Driver)(nil)
)

const defaultNamespace = "default"

// New returns a driver.
func New(config Config) *Driver {
	if config.Cloud == nil {
		config.Cloud = NewCloud(CloudOptions{Seed: config.Seed})
	}
	d := &Driver{config: config, cloud: config.Cloud}
	if config.Nodes != nil {
		d.kubelets = newKubelets(config.Cloud, config)
	}
	return d
}

// Start runs the kubelets: nodes join, flap and renew their Leases until ctx is done. VMs that have not joined by
// then join during the next Start, even in another process. Start returns when the last write is complete. It
// returns an error only if the cloud cannot be read. It logs to the logger of ctx. It must not run twice at the
// same time on one driver.
func (d *Driver) Start(ctx context.Context) error {
	if d.kubelets == nil {
		<-ctx.Done()
		return nil
	}
	d.kubelets.start()
	// Listen first: a job that is planned twice is executed once.
	defer d.cloud.listen(d.kubelets)()
	vms, err := d.cloud.VMs()
	if err != nil {
		return err
	}
	for _, v := range vms {
		if v.Node != nil {
			d.kubelets.planJoin(v)
		}
	}
	d.kubelets.run(ctx)
	return nil
}

// NeedLeaderElection makes a controller-runtime manager call Start only in the leader, because two processes would
// write every node twice.
func (d *Driver) NeedLeaderElection() bool { return true }

// Cloud returns the cloud of the driver.
func (d *Driver) Cloud() *Cloud { return d.cloud }

// SeparatesAPIGroups implements driver.APIGroupSeparator.
func (d *Driver) SeparatesAPIGroups() bool { return true }

// CreateMachine implements driver.Driver.
func (d *Driver) CreateMachine(ctx context.Context, req *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
	return machineCall(ctx, d, CreateMachine, request{req.Machine, req.MachineClass, req.Secret, spec.Parse}, func(c call) (*driver.CreateMachineResponse, error) {
		if err := spec.CheckNodeName(c.name); err != nil {
			return nil, err
		}
		v, isNew, err := d.cloud.create(d.newVM(c, req.MachineClass), limits{pool: c.spec.Capacity, zone: c.spec.ZoneCapacity})
		if isNew {
			d.cloud.notify(v, (*kubelets).planJoin)
		}
		return &driver.CreateMachineResponse{ProviderID: v.ProviderID, NodeName: v.NodeName, Addresses: v.addresses(), FailureDomain: v.Zone}, err
	})
}

// DeleteMachine implements driver.Driver. After it has returned, the VM's node is no longer written.
func (d *Driver) DeleteMachine(ctx context.Context, req *driver.DeleteMachineRequest) (*driver.DeleteMachineResponse, error) {
	return machineCall(ctx, d, DeleteMachine, request{req.Machine, req.MachineClass, req.Secret, spec.ParseToFind}, func(c call) (*driver.DeleteMachineResponse, error) {
		vms, err := d.cloud.remove(c)
		if err != nil || d.kubelets == nil {
			return &driver.DeleteMachineResponse{}, err
		}
		for _, v := range vms {
			unlock, err := d.kubelets.lock(ctx, v.NodeName)
			if err != nil {
				return nil, contextError(ctx)
			}
			unlock()
		}
		return &driver.DeleteMachineResponse{}, nil
	})
}

// GetMachineStatus implements driver.Driver.
func (d *Driver) GetMachineStatus(ctx context.Context, req *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
	return machineCall(ctx, d, GetMachineStatus, request{req.Machine, req.MachineClass, req.Secret, spec.ParseToFind}, func(c call) (*driver.GetMachineStatusResponse, error) {
		v, err := d.cloud.find(c)
		if err == nil && !v.Initialized {
			err = status.Error(codes.Uninitialized, fmt.Sprintf("VM %s is not initialized", v.ProviderID))
		}
		return &driver.GetMachineStatusResponse{ProviderID: v.ProviderID, NodeName: v.NodeName, Addresses: v.addresses(), FailureDomain: v.Zone}, err
	})
}

// ListMachines implements driver.Driver.
func (d *Driver) ListMachines(ctx context.Context, req *driver.ListMachinesRequest) (*driver.ListMachinesResponse, error) {
	return classCall(ctx, d, ListMachines, req.MachineClass, req.Secret, func(c call) (*driver.ListMachinesResponse, error) {
		resp := &driver.ListMachinesResponse{MachineList: map[string]string{}}
		vms, err := d.cloud.list(c.owner())
		for _, v := range vms {
			resp.MachineList[v.ProviderID] = v.Machine
		}
		return resp, err
	})
}

// InitializeMachine implements driver.Initializer.
func (d *Driver) InitializeMachine(ctx context.Context, req *driver.InitializeMachineRequest) (*driver.InitializeMachineResponse, error) {
	if !d.config.RequireInitialize {
		return nil, status.Error(codes.Unimplemented, "simulated VMs need no initialization")
	}
	return machineCall(ctx, d, InitializeMachine, request{req.Machine, req.MachineClass, req.Secret, spec.Parse}, func(c call) (*driver.InitializeMachineResponse, error) {
		v, err := d.cloud.find(c)
		if err != nil {
			return nil, err
		}
		v, exists, err := d.cloud.change(v.ProviderID, func(v *VM) { v.Initialized = true })
		if err == nil && !exists {
			err = status.Error(codes.NotFound, "the VM no longer exists")
		}
		return &driver.InitializeMachineResponse{ProviderID: v.ProviderID, NodeName: v.NodeName, Addresses: v.addresses()}, err
	})
}

// GetVolumeIDs implements driver.VolumeIdentifier. It returns the volume handles of CSI volumes of any CSI driver,
// and leaves out other volumes.
func (d *Driver) GetVolumeIDs(ctx context.Context, req *driver.GetVolumeIDsRequest) (*driver.GetVolumeIDsResponse, error) {
	return run(ctx, d, call{method: GetVolumeIDs}, func(call) (*driver.GetVolumeIDsResponse, error) {
		resp := &driver.GetVolumeIDsResponse{}
		for _, pv := range req.PVSpecs {
			if pv != nil && pv.CSI != nil {
				resp.VolumeIDs = append(resp.VolumeIDs, pv.CSI.VolumeHandle)
			}
		}
		return resp, nil
	})
}

// ListFailureDomains implements driver.FailureDomains. The failure domains are the zones of the cloud.
func (d *Driver) ListFailureDomains(ctx context.Context, req *driver.ListFailureDomainsRequest) (*driver.ListFailureDomainsResponse, error) {
	return classCall(ctx, d, ListFailureDomains, req.MachineClass, req.Secret, func(call) (*driver.ListFailureDomainsResponse, error) {
		resp := &driver.ListFailureDomainsResponse{}
		zones, err := d.cloud.Zones()
		for _, zone := range zones {
			resp.FailureDomains = append(resp.FailureDomains, driver.FailureDomain{Name: zone})
		}
		return resp, err
	})
}

// PlaceMachine implements driver.FailureDomains. It sets the field zone.
func (d *Driver) PlaceMachine(_ context.Context, req *driver.PlaceMachineRequest) (*driver.PlaceMachineResponse, error) {
	if !spec.IsZone(req.FailureDomain) {
		return nil, status.Error(codes.NotFound, fmt.Sprintf("%q is not a valid zone", req.FailureDomain))
	}
	raw, err := driver.WithField(req.MachineClass.ProviderSpec, "zone", req.FailureDomain)
	if err != nil {
		return nil, err
	}
	return &driver.PlaceMachineResponse{ProviderSpec: raw}, nil
}

// GenerateMachineClassForMigration implements driver.ClassMigrator for the six kinds of package legacy.
func (d *Driver) GenerateMachineClassForMigration(ctx context.Context, req *driver.GenerateMachineClassForMigrationRequest) (*driver.GenerateMachineClassForMigrationResponse, error) {
	return run(ctx, d, call{method: GenerateMachineClassForMigration}, func(call) (*driver.GenerateMachineClassForMigrationResponse, error) {
		return &driver.GenerateMachineClassForMigrationResponse{}, migrate.Fill(req)
	})
}

// LocateMachine implements driver.Locator. The location is the account and the pool, so it does not need the cloud.
func (d *Driver) LocateMachine(_ context.Context, req *driver.LocateMachineRequest) (*driver.LocateMachineResponse, error) {
	c, err := parse(request{req.Machine, req.MachineClass, req.Secret, spec.ParseToFind})
	if err != nil {
		return nil, err
	}
	return &driver.LocateMachineResponse{Location: c.location(cmp.Or(c.begun, c.spec.Pool))}, nil
}
