package pluginserver

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
	driverpb "github.com/millwright-dev/millwright/proto/driver"
)

// SeparatesAPIGroups implements driver.APIGroupSeparator. It returns the value of the driver's last
// registration.
func (d *Driver) SeparatesAPIGroups() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.last.GetSeparatesApiGroups()
}

// MigratedKinds implements driver.KindMigrator. It returns the value of the driver's last registration.
func (d *Driver) MigratedKinds() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.last.GetMigratedKinds()
}

// CreateMachine implements driver.Driver.
func (d *Driver) CreateMachine(ctx context.Context, req *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
	result, err := d.ask(ctx, driverpb.OperationType_OT_CREATE_MACHINE, req.Machine, req.MachineClass, req.Secret)
	if result == nil {
		return nil, err
	}
	return &driver.CreateMachineResponse{
		ProviderID: result.GetProviderId(), NodeName: result.GetNodeName(), LastKnownState: result.GetLastKnownState(),
		Addresses: addressesOf(result.GetAddresses()), FailureDomain: result.GetFailureDomain(),
	}, err
}

// InitializeMachine implements driver.Initializer.
func (d *Driver) InitializeMachine(ctx context.Context, req *driver.InitializeMachineRequest) (*driver.InitializeMachineResponse, error) {
	result, err := d.ask(ctx, driverpb.OperationType_OT_INITIALIZE_MACHINE, req.Machine, req.MachineClass, req.Secret)
	if result == nil {
		return nil, err
	}
	return &driver.InitializeMachineResponse{
		ProviderID: result.GetProviderId(), NodeName: result.GetNodeName(), Addresses: addressesOf(result.GetAddresses()),
	}, err
}

// DeleteMachine implements driver.Driver.
func (d *Driver) DeleteMachine(ctx context.Context, req *driver.DeleteMachineRequest) (*driver.DeleteMachineResponse, error) {
	result, err := d.ask(ctx, driverpb.OperationType_OT_DELETE_MACHINE, req.Machine, req.MachineClass, req.Secret)
	if result == nil {
		return nil, err
	}
	return &driver.DeleteMachineResponse{LastKnownState: result.GetLastKnownState()}, err
}

// GetMachineStatus implements driver.Driver.
func (d *Driver) GetMachineStatus(ctx context.Context, req *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
	result, err := d.ask(ctx, driverpb.OperationType_OT_GET_MACHINE_STATUS, req.Machine, req.MachineClass, req.Secret)
	if result == nil {
		return nil, err
	}
	return &driver.GetMachineStatusResponse{
		ProviderID: result.GetProviderId(), NodeName: result.GetNodeName(), Addresses: addressesOf(result.GetAddresses()),
		FailureDomain: result.GetFailureDomain(),
	}, err
}

// ListMachines implements driver.Driver.
func (d *Driver) ListMachines(ctx context.Context, req *driver.ListMachinesRequest) (*driver.ListMachinesResponse, error) {
	result, err := d.ask(ctx, driverpb.OperationType_OT_LIST_MACHINES, nil, req.MachineClass, req.Secret)
	if err != nil {
		return nil, err
	}
	return &driver.ListMachinesResponse{MachineList: result.GetMachineList()}, nil
}

// GetVolumeIDs implements driver.VolumeIdentifier.
func (d *Driver) GetVolumeIDs(ctx context.Context, req *driver.GetVolumeIDsRequest) (*driver.GetVolumeIDsResponse, error) {
	op := &operation{message: &driverpb.Operation{OperationType: driverpb.OperationType_OT_GET_VOLUME_IDS}}
	for _, spec := range req.PVSpecs {
		encoded, err := encode("PersistentVolume", spec)
		if err != nil {
			return nil, err
		}
		op.message.VolumeSpecs = append(op.message.VolumeSpecs, encoded)
	}
	result, err := d.do(ctx, op)
	if err != nil {
		return nil, err
	}
	return &driver.GetVolumeIDsResponse{VolumeIDs: result.GetVolumeIds()}, nil
}

// LocateMachine implements driver.Locator.
func (d *Driver) LocateMachine(ctx context.Context, req *driver.LocateMachineRequest) (*driver.LocateMachineResponse, error) {
	result, err := d.ask(ctx, driverpb.OperationType_OT_LOCATE_MACHINE, req.Machine, req.MachineClass, req.Secret)
	if err != nil {
		return nil, err
	}
	if result.GetLocation() == "" {
		return nil, status.Error(codes.Internal, "the driver returned an empty location")
	}
	return &driver.LocateMachineResponse{Location: result.GetLocation()}, nil
}

// UpdateMachine implements driver.Updater.
func (d *Driver) UpdateMachine(ctx context.Context, req *driver.UpdateMachineRequest) (*driver.UpdateMachineResponse, error) {
	op, err := d.about(driverpb.OperationType_OT_UPDATE_MACHINE, req.Machine, req.MachineClass, req.Secret)
	if err != nil {
		return nil, err
	}
	op.message.MadeFrom, op.message.DryRun = req.MadeFrom.Raw, req.DryRun
	result, err := d.do(ctx, op)
	if err != nil {
		return nil, err
	}
	return &driver.UpdateMachineResponse{
		Updates: result.GetUpdates(), AtNextStart: result.GetAtNextStart(), Replacements: result.GetReplacements(),
	}, nil
}

// ListFailureDomains implements driver.FailureDomains.
func (d *Driver) ListFailureDomains(ctx context.Context, req *driver.ListFailureDomainsRequest) (*driver.ListFailureDomainsResponse, error) {
	result, err := d.ask(ctx, driverpb.OperationType_OT_LIST_FAILURE_DOMAINS, nil, req.MachineClass, req.Secret)
	if err != nil {
		return nil, err
	}
	resp := &driver.ListFailureDomainsResponse{}
	for _, one := range result.GetFailureDomains() {
		resp.FailureDomains = append(resp.FailureDomains, driver.FailureDomain{Name: one.GetName(), Attributes: one.GetAttributes()})
	}
	return resp, nil
}

// placement is how long PlaceMachine may take. Callers expect it to be fast.
const placement = 5 * time.Second

// PlaceMachine implements driver.FailureDomains. Because it is a pure function, results are cached while the
// driver is connected.
func (d *Driver) PlaceMachine(ctx context.Context, req *driver.PlaceMachineRequest) (*driver.PlaceMachineResponse, error) {
	op, err := d.about(driverpb.OperationType_OT_PLACE_MACHINE, nil, req.MachineClass, nil)
	if err != nil {
		return nil, err
	}
	op.message.FailureDomain = req.FailureDomain
	current, err := d.sessionFor(op.message.GetOperationType())
	if err != nil {
		return nil, err
	}
	type key struct{ class, domain string }
	asked := key{op.message.GetMachineClass().GetVersion(), req.FailureDomain}
	if found, ok := current.placed.Get(asked); ok {
		if object, ok := found.([]byte); ok {
			return &driver.PlaceMachineResponse{ProviderSpec: runtime.RawExtension{Raw: object}}, nil
		}
	}
	ctx, cancel := context.WithTimeout(ctx, placement)
	defer cancel()
	result, err := d.do(ctx, op)
	if err != nil {
		return nil, err
	}
	if !isSpecification(result.GetObject()) {
		return nil, status.Error(codes.Internal, fmt.Sprintf("the driver returned a provider specification that is not a JSON object of at most %d bytes", maxSpecification))
	}
	current.placed.Add(asked, result.GetObject())
	return &driver.PlaceMachineResponse{ProviderSpec: runtime.RawExtension{Raw: result.GetObject()}}, nil
}

// maxSpecification is the maximum length of a provider specification, in bytes. API servers store no longer
// ones.
const maxSpecification = 1 << 20

// isSpecification reports whether a result is a provider specification.
func isSpecification(result []byte) bool {
	var fields map[string]json.RawMessage
	return len(result) <= maxSpecification && json.Unmarshal(result, &fields) == nil && fields != nil
}

// GenerateMachineClassForMigration implements driver.ClassMigrator. The name and namespace in the result are
// ignored.
func (d *Driver) GenerateMachineClassForMigration(ctx context.Context, req *driver.GenerateMachineClassForMigrationRequest) (*driver.GenerateMachineClassForMigrationResponse, error) {
	op, err := d.about(driverpb.OperationType_OT_GENERATE_MACHINE_CLASS_FOR_MIGRATION, nil, req.MachineClass, nil)
	if err != nil {
		return nil, err
	}
	if op.message.ProviderSpecificMachineClass, err = withKind(req); err != nil {
		return nil, err
	}
	result, err := d.do(ctx, op)
	if err != nil {
		return nil, err
	}
	filled := &v1alpha1.MachineClass{}
	if err := json.Unmarshal(result.GetObject(), filled); err != nil {
		return nil, status.WrapError(codes.Internal, "the driver returned an invalid MachineClass: "+err.Error(), err)
	}
	filled.TypeMeta, filled.ObjectMeta.Name, filled.ObjectMeta.Namespace = req.MachineClass.TypeMeta, req.MachineClass.Name, req.MachineClass.Namespace
	*req.MachineClass = *filled
	return &driver.GenerateMachineClassForMigrationResponse{}, nil
}

// withKind encodes an object to migrate as JSON, including its kind.
func withKind(req *driver.GenerateMachineClassForMigrationRequest) ([]byte, error) {
	encoded, err := encode("object to migrate", req.ProviderSpecificMachineClass)
	if err != nil || req.ClassSpec == nil {
		return encoded, err
	}
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(encoded, &fields); err != nil {
		return nil, status.WrapError(codes.InvalidArgument, "the object to migrate is not a JSON object", err)
	}
	if fields["kind"], err = encode("kind", req.ClassSpec.Kind); err != nil {
		return nil, err
	}
	if _, has := fields["apiVersion"]; !has {
		fields["apiVersion"], err = encode("API version", req.ClassSpec.APIGroup+"/v1alpha1")
		if err != nil {
			return nil, err
		}
	}
	return encode("object to migrate", fields)
}

// addressesOf converts the addresses of a VM.
func addressesOf(addresses []*driverpb.Address) []corev1.NodeAddress {
	var all []corev1.NodeAddress
	for _, one := range addresses {
		all = append(all, corev1.NodeAddress{Type: corev1.NodeAddressType(one.GetType()), Address: one.GetAddress()})
	}
	return all
}
