// Package folder is a driver for MCM whose VMs are files in a directory. The driver also creates their nodes.
package folder

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/gardener/machine-controller-manager/pkg/apis/machine/v1alpha1"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/driver"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/codes"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/status"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/klog/v2"
)

// Driver creates, finds and deletes files.
type Driver struct {
	nodes typedcorev1.NodeInterface
}

// NewDriver returns a driver whose VMs become nodes of a cluster.
func NewDriver(nodes typedcorev1.NodeInterface) driver.Driver {
	return &Driver{nodes: nodes}
}

const scheme = "folder:///"

// CreateMachine writes the file of a machine, if it does not exist.
func (d *Driver) CreateMachine(ctx context.Context, req *driver.CreateMachineRequest) (resp *driver.CreateMachineResponse, err error) {
	defer recordCall("create_machine", &err)()
	klog.V(3).Infof("Machine creation request has been received for %q", req.Machine.Name)

	c, err := open(ctx, req.MachineClass, req.Machine)
	if err != nil {
		return nil, err
	}
	if err = checkFields(req.MachineClass); err != nil {
		return nil, err
	}
	if len(req.Secret.Data["userData"]) == 0 {
		return nil, status.Error(codes.InvalidArgument, "the Secret has no userData")
	}
	v, err := c.create(req.Machine)
	if err != nil {
		return nil, err
	}
	if v.Size != c.spec.Size {
		return nil, status.Error(codes.AlreadyExists, fmt.Sprintf("VM %s exists with size %s", v.ID, v.Size))
	}
	klog.V(2).Infof("VM %q was created for machine %q", v.ID, req.Machine.Name)
	return &driver.CreateMachineResponse{ProviderID: scheme + v.ID, NodeName: v.Machine, LastKnownState: "created"}, nil
}

// InitializeMachine starts the VM, which then becomes a node.
func (d *Driver) InitializeMachine(ctx context.Context, req *driver.InitializeMachineRequest) (resp *driver.InitializeMachineResponse, err error) {
	defer recordCall("initialize_machine", &err)()
	c, v, err := find(ctx, req.MachineClass, req.Machine)
	if err != nil {
		return nil, err
	}
	if err = d.join(ctx, v); err != nil {
		return nil, status.Error(codes.Uninitialized, err.Error())
	}
	v.Initialized = true
	if err = c.change(v); err != nil {
		return nil, err
	}
	return &driver.InitializeMachineResponse{ProviderID: scheme + v.ID, NodeName: v.Machine}, nil
}

// DeleteMachine removes the file of a machine.
func (d *Driver) DeleteMachine(ctx context.Context, req *driver.DeleteMachineRequest) (resp *driver.DeleteMachineResponse, err error) {
	defer recordCall("delete_machine", &err)()
	klog.V(3).Infof("Machine deletion request has been received for %q", req.Machine.Name)
	c, v, err := find(ctx, req.MachineClass, req.Machine)
	switch {
	case err == nil:
		err = c.remove(v)
	case codeOf(err) == codes.NotFound:
		err = nil
	}
	if err != nil {
		return nil, err
	}
	return &driver.DeleteMachineResponse{LastKnownState: "deleted"}, nil
}

// GetMachineStatus finds the VM of a machine.
func (d *Driver) GetMachineStatus(ctx context.Context, req *driver.GetMachineStatusRequest) (resp *driver.GetMachineStatusResponse, err error) {
	defer recordCall("get_machine_status", &err)()
	_, v, err := find(ctx, req.MachineClass, req.Machine)
	if err != nil {
		return nil, err
	}
	resp = &driver.GetMachineStatusResponse{ProviderID: scheme + v.ID, NodeName: v.Machine}
	if !v.Initialized {
		return resp, status.Error(codes.Uninitialized, "the VM has not been started")
	}
	return resp, nil
}

// ListMachines lists the VMs with the tags of a class.
func (d *Driver) ListMachines(ctx context.Context, req *driver.ListMachinesRequest) (resp *driver.ListMachinesResponse, err error) {
	defer recordCall("list_machine", &err)()
	if err = ended(ctx); err != nil {
		return nil, err
	}
	spec, err := specOf(req.MachineClass)
	if err != nil {
		return nil, err
	}
	c := cloud{spec}
	vms, err := c.list()
	if err != nil {
		return nil, err
	}
	list := map[string]string{}
	for _, v := range vms {
		if c.owns(v) {
			list[scheme+v.ID] = v.Machine
		}
	}
	return &driver.ListMachinesResponse{MachineList: list}, nil
}

// GetVolumeIDs returns the names of this provider's volumes.
func (d *Driver) GetVolumeIDs(_ context.Context, req *driver.GetVolumeIDsRequest) (resp *driver.GetVolumeIDsResponse, err error) {
	defer recordCall("get_volume_ids", &err)()
	resp = &driver.GetVolumeIDsResponse{}
	for _, spec := range req.PVSpecs {
		if spec.CSI != nil && spec.CSI.Driver == "folder.example.org" {
			resp.VolumeIDs = append(resp.VolumeIDs, spec.CSI.VolumeHandle)
		}
	}
	return resp, nil
}

// GenerateMachineClassForMigration is not implemented, because this provider had no other kinds of classes.
func (d *Driver) GenerateMachineClassForMigration(context.Context, *driver.GenerateMachineClassForMigrationRequest) (*driver.GenerateMachineClassForMigrationResponse, error) {
	return nil, status.Error(codes.Unimplemented, "there are no legacy classes")
}

// ended returns an error if the context of a call is done.
func ended(ctx context.Context) error {
	switch err := ctx.Err(); {
	case err == nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		return status.WrapError(codes.DeadlineExceeded, "the call did not complete in time", err)
	default:
		return status.WrapError(codes.Canceled, "the call was canceled", err)
	}
}

// open validates a call for a machine and returns the directory of its class.
func open(ctx context.Context, class *v1alpha1.MachineClass, machine *v1alpha1.Machine) (cloud, error) {
	if err := ended(ctx); err != nil {
		return cloud{}, err
	}
	if machine.Name == "" {
		return cloud{}, status.Error(codes.InvalidArgument, "the machine has no name")
	}
	spec, err := specOf(class)
	return cloud{spec}, err
}

// find returns the VM of a machine: by its ID if it is known, because the tags of a class may be edited, and
// otherwise by the tags and the machine's name.
func find(ctx context.Context, class *v1alpha1.MachineClass, machine *v1alpha1.Machine) (cloud, *vm, error) {
	c, err := open(ctx, class, machine)
	if err != nil {
		return c, nil, err
	}
	vms, err := c.list()
	if err != nil {
		return c, nil, err
	}
	id := strings.TrimPrefix(machine.Spec.ProviderID, scheme)
	for _, v := range vms {
		known := id != "" && v.ID == id && v.Machine == machine.Name
		named := id == "" && c.owns(v) && v.Namespace == machine.Namespace && v.Machine == machine.Name
		if known || named {
			return c, v, nil
		}
	}
	return c, nil, status.Error(codes.NotFound, fmt.Sprintf("machine %s has no VM", machine.Name))
}
