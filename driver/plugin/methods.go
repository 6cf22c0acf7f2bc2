package plugin

import (
	"context"
	"encoding/json"
	"strings"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
	driverpb "github.com/millwright-dev/millwright/proto/driver"
)

// method executes an operation and fills the result, even if it returns an error.
type method func(ctx context.Context, d driver.Driver, r *request, result *driverpb.OperationResult) error

var methods = map[driverpb.OperationType]method{
	driverpb.OperationType_OT_CREATE_MACHINE:                       create,
	driverpb.OperationType_OT_DELETE_MACHINE:                       remove,
	driverpb.OperationType_OT_LIST_MACHINES:                        list,
	driverpb.OperationType_OT_GET_MACHINE_STATUS:                   getStatus,
	driverpb.OperationType_OT_INITIALIZE_MACHINE:                   initialize,
	driverpb.OperationType_OT_GET_VOLUME_IDS:                       volumes,
	driverpb.OperationType_OT_LOCATE_MACHINE:                       locate,
	driverpb.OperationType_OT_GENERATE_MACHINE_CLASS_FOR_MIGRATION: migrate,
	driverpb.OperationType_OT_LIST_FAILURE_DOMAINS:                 domains,
	driverpb.OperationType_OT_PLACE_MACHINE:                        place,
	driverpb.OperationType_OT_UPDATE_MACHINE:                       update,
}

// empty returns the error for a driver that returned neither a response nor an error.
func empty(err error) error {
	if err != nil {
		return err
	}
	return status.Error(codes.Internal, "the driver returned neither a response nor an error")
}

func unimplemented(name string) error {
	return status.Error(codes.Unimplemented, "the driver does not implement "+name)
}

func create(ctx context.Context, d driver.Driver, r *request, result *driverpb.OperationResult) error {
	resp, err := d.CreateMachine(ctx, &driver.CreateMachineRequest{Machine: r.machine, MachineClass: r.class, Secret: r.secret})
	if resp == nil {
		return empty(err)
	}
	result.ProviderId, result.NodeName, result.LastKnownState = resp.ProviderID, resp.NodeName, text(resp.LastKnownState)
	result.Addresses, result.FailureDomain = addressesOf(resp.Addresses), text(resp.FailureDomain)
	return err
}

func remove(ctx context.Context, d driver.Driver, r *request, result *driverpb.OperationResult) error {
	resp, err := d.DeleteMachine(ctx, &driver.DeleteMachineRequest{Machine: r.machine, MachineClass: r.class, Secret: r.secret})
	if resp == nil {
		return empty(err)
	}
	result.LastKnownState = text(resp.LastKnownState)
	return err
}

func list(ctx context.Context, d driver.Driver, r *request, result *driverpb.OperationResult) error {
	resp, err := d.ListMachines(ctx, &driver.ListMachinesRequest{MachineClass: r.class, Secret: r.secret})
	if resp == nil {
		return empty(err)
	}
	result.MachineList = resp.MachineList
	return err
}

func getStatus(ctx context.Context, d driver.Driver, r *request, result *driverpb.OperationResult) error {
	resp, err := d.GetMachineStatus(ctx, &driver.GetMachineStatusRequest{Machine: r.machine, MachineClass: r.class, Secret: r.secret})
	if resp == nil {
		if status.Is(err, codes.Uninitialized) {
			return status.WrapError(codes.Internal, "the driver returned Uninitialized without a response", err)
		}
		return empty(err)
	}
	result.ProviderId, result.NodeName, result.Addresses = resp.ProviderID, resp.NodeName, addressesOf(resp.Addresses)
	result.FailureDomain = text(resp.FailureDomain)
	return err
}

func initialize(ctx context.Context, d driver.Driver, r *request, result *driverpb.OperationResult) error {
	able, ok := driver.As[driver.Initializer](d)
	if !ok {
		return unimplemented("InitializeMachine")
	}
	resp, err := able.InitializeMachine(ctx, &driver.InitializeMachineRequest{Machine: r.machine, MachineClass: r.class, Secret: r.secret})
	if resp == nil {
		return empty(err)
	}
	result.ProviderId, result.NodeName, result.Addresses = resp.ProviderID, resp.NodeName, addressesOf(resp.Addresses)
	return err
}

func volumes(ctx context.Context, d driver.Driver, r *request, result *driverpb.OperationResult) error {
	able, ok := driver.As[driver.VolumeIdentifier](d)
	if !ok {
		return unimplemented("GetVolumeIDs")
	}
	req := &driver.GetVolumeIDsRequest{}
	for _, raw := range r.GetVolumeSpecs() {
		spec := &corev1.PersistentVolumeSpec{}
		if err := decode("PersistentVolume", raw, spec); err != nil {
			return err
		}
		req.PVSpecs = append(req.PVSpecs, spec)
	}
	resp, err := able.GetVolumeIDs(ctx, req)
	if resp == nil {
		return empty(err)
	}
	result.VolumeIds = resp.VolumeIDs
	return err
}

func locate(ctx context.Context, d driver.Driver, r *request, result *driverpb.OperationResult) error {
	able, ok := driver.As[driver.Locator](d)
	if !ok {
		return unimplemented("LocateMachine")
	}
	resp, err := able.LocateMachine(ctx, &driver.LocateMachineRequest{Machine: r.machine, MachineClass: r.class, Secret: r.secret})
	if resp == nil {
		return empty(err)
	}
	result.Location = resp.Location
	return err
}

func update(ctx context.Context, d driver.Driver, r *request, result *driverpb.OperationResult) error {
	able, ok := driver.As[driver.Updater](d)
	if !ok {
		return unimplemented("UpdateMachine")
	}
	resp, err := able.UpdateMachine(ctx, &driver.UpdateMachineRequest{
		Machine: r.machine, MachineClass: r.class, Secret: r.secret, MadeFrom: runtime.RawExtension{Raw: r.GetMadeFrom()}, DryRun: r.GetDryRun(),
	})
	if resp == nil {
		return empty(err)
	}
	result.Updates, result.AtNextStart, result.Replacements = texts(resp.Updates), texts(resp.AtNextStart), texts(resp.Replacements)
	return err
}

// migrate passes the object as *unstructured.Unstructured.
func migrate(ctx context.Context, d driver.Driver, r *request, result *driverpb.OperationResult) error {
	able, ok := driver.As[driver.ClassMigrator](d)
	if !ok {
		return unimplemented("GenerateMachineClassForMigration")
	}
	old := &unstructured.Unstructured{}
	if err := decode("object to migrate", r.GetProviderSpecificMachineClass(), old); err != nil {
		return err
	}
	kind := old.GroupVersionKind()
	resp, err := able.GenerateMachineClassForMigration(ctx, &driver.GenerateMachineClassForMigrationRequest{
		ProviderSpecificMachineClass: old, MachineClass: r.class,
		ClassSpec: &v1alpha1.ClassSpec{APIGroup: kind.Group, Kind: kind.Kind, Name: old.GetName()},
	})
	if resp == nil || err != nil {
		return empty(err)
	}
	filled := r.class.DeepCopy()
	filled.TypeMeta = metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "MachineClass"}
	result.Object, err = json.Marshal(filled)
	return err
}

func domains(ctx context.Context, d driver.Driver, r *request, result *driverpb.OperationResult) error {
	able, ok := driver.As[driver.FailureDomains](d)
	if !ok {
		return unimplemented("ListFailureDomains")
	}
	resp, err := able.ListFailureDomains(ctx, &driver.ListFailureDomainsRequest{MachineClass: r.class, Secret: r.secret})
	if resp == nil {
		return empty(err)
	}
	for _, one := range resp.FailureDomains {
		result.FailureDomains = append(result.FailureDomains, &driverpb.FailureDomain{Name: one.Name, Attributes: one.Attributes})
	}
	return err
}

func place(ctx context.Context, d driver.Driver, r *request, result *driverpb.OperationResult) error {
	able, ok := driver.As[driver.FailureDomains](d)
	if !ok {
		return unimplemented("PlaceMachine")
	}
	resp, err := able.PlaceMachine(ctx, &driver.PlaceMachineRequest{MachineClass: r.class, FailureDomain: r.GetFailureDomain()})
	if resp == nil {
		return empty(err)
	}
	result.Object = resp.ProviderSpec.Raw
	return err
}

// text returns s if a message can carry it, and an empty string otherwise. The manager would not store such a text
// either.
func text(s string) string {
	if !utf8.ValidString(s) {
		return ""
	}
	return s
}

// texts returns texts that a message can carry, with invalid characters replaced. Each text is a difference and
// must not be lost.
func texts(all []string) []string {
	var valid []string
	for _, one := range all {
		valid = append(valid, strings.ToValidUTF8(one, "\uFFFD"))
	}
	return valid
}

// addressesOf converts the addresses of a VM.
func addressesOf(addresses []corev1.NodeAddress) []*driverpb.Address {
	var all []*driverpb.Address
	for _, one := range addresses {
		all = append(all, &driverpb.Address{Type: string(one.Type), Address: one.Address})
	}
	return all
}

// fail puts an error into a result. A nil error means success.
func fail(result *driverpb.OperationResult, err error) {
	if err == nil {
		return
	}
	found, _ := status.FromError(err)
	result.Code, result.Message = uint32(status.Code(err)), driverpb.Shortened(found.Message())
}
