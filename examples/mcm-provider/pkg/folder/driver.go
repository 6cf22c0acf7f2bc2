// Package folder is a driver for MCM whose VMs are files in a folder. Their nodes are made by the driver.
package folder

import (
	"context"
	"crypto/rand"
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

// CreateMachine writes the file of a machine, unless there is one.
func (d *Driver) CreateMachine(_ context.Context, req *driver.CreateMachineRequest) (resp *driver.CreateMachineResponse, err error) {
	defer recordCall("create_machine", &err)()
	klog.V(3).Infof("Machine creation request has been received for %q", req.Machine.Name)

	c, v, err := find(req.MachineClass, req.Machine)
	if err != nil && codeOf(err) != codes.NotFound {
		return nil, err
	}
	if len(req.Secret.Data["userData"]) == 0 {
		return nil, status.Error(codes.InvalidArgument, "the Secret has no userData")
	}
	if v != nil && v.Size != c.spec.Size {
		return nil, status.Error(codes.AlreadyExists, fmt.Sprintf("%s has the size %s", v.ID, v.Size))
	}
	if v == nil {
		v = &vm{ID: rand.Text(), Machine: req.Machine.Name, Size: c.spec.Size, Tags: c.spec.Tags}
		if err = c.put(v); err != nil {
			return nil, err
		}
	}
	klog.V(2).Infof("VM %q was created for machine %q", v.ID, req.Machine.Name)
	return &driver.CreateMachineResponse{ProviderID: scheme + v.ID, NodeName: v.Machine, LastKnownState: "created"}, nil
}

// InitializeMachine starts the VM: it becomes a node.
func (d *Driver) InitializeMachine(ctx context.Context, req *driver.InitializeMachineRequest) (resp *driver.InitializeMachineResponse, err error) {
	defer recordCall("initialize_machine", &err)()
	c, v, err := find(req.MachineClass, req.Machine)
	if err != nil {
		return nil, err
	}
	if err = d.join(ctx, v); err != nil {
		return nil, status.Error(codes.Uninitialized, err.Error())
	}
	v.Initialized = true
	if err = c.put(v); err != nil {
		return nil, err
	}
	return &driver.InitializeMachineResponse{ProviderID: scheme + v.ID, NodeName: v.Machine}, nil
}

// DeleteMachine removes the file of a machine.
func (d *Driver) DeleteMachine(_ context.Context, req *driver.DeleteMachineRequest) (resp *driver.DeleteMachineResponse, err error) {
	defer recordCall("delete_machine", &err)()
	klog.V(3).Infof("Machine deletion request has been received for %q", req.Machine.Name)
	c, v, err := find(req.MachineClass, req.Machine)
	switch {
	case err == nil:
		err = c.remove(v.ID)
	case codeOf(err) == codes.NotFound:
		err = nil
	}
	if err != nil {
		return nil, err
	}
	return &driver.DeleteMachineResponse{LastKnownState: "deleted"}, nil
}

// GetMachineStatus finds the VM of a machine.
func (d *Driver) GetMachineStatus(_ context.Context, req *driver.GetMachineStatusRequest) (resp *driver.GetMachineStatusResponse, err error) {
	defer recordCall("get_machine_status", &err)()
	_, v, err := find(req.MachineClass, req.Machine)
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
func (d *Driver) ListMachines(_ context.Context, req *driver.ListMachinesRequest) (resp *driver.ListMachinesResponse, err error) {
	defer recordCall("list_machine", &err)()
	spec, err := specOf(req.MachineClass)
	if err != nil {
		return nil, err
	}
	vms, err := cloud{spec}.list()
	if err != nil {
		return nil, err
	}
	list := map[string]string{}
	for _, v := range vms {
		list[scheme+v.ID] = v.Machine
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

// GenerateMachineClassForMigration is not implemented: there were no classes of another kind.
func (d *Driver) GenerateMachineClassForMigration(context.Context, *driver.GenerateMachineClassForMigrationRequest) (*driver.GenerateMachineClassForMigrationResponse, error) {
	return nil, status.Error(codes.Unimplemented, "there are no legacy classes")
}

// find finds the VM of a machine, by its ID if it is known, and otherwise by the machine's name.
func find(class *v1alpha1.MachineClass, machine *v1alpha1.Machine) (cloud, *vm, error) {
	spec, err := specOf(class)
	if err != nil {
		return cloud{}, nil, err
	}
	c := cloud{spec}
	vms, err := c.list()
	if err != nil {
		return c, nil, err
	}
	id := strings.TrimPrefix(machine.Spec.ProviderID, scheme)
	var found []*vm
	for _, v := range vms {
		if id != "" && v.ID == id || id == "" && v.Machine == machine.Name {
			found = append(found, v)
		}
	}
	switch len(found) {
	case 0:
		return c, nil, status.Error(codes.NotFound, fmt.Sprintf("there is no VM for machine %s", machine.Name))
	case 1:
		return c, found[0], nil
	default:
		return c, nil, status.Error(codes.OutOfRange, fmt.Sprintf("there are %d VMs for machine %s", len(found), machine.Name))
	}
}
