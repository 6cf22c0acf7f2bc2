package sim

import (
	"context"
	"maps"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/sim/internal/spec"
	"github.com/millwright-dev/millwright/driver/status"
)

// UpdateMachine implements driver.Updater. It changes tags. A VM cannot change its pool or zone, and the kubelet
// sets the labels and taints of its node only once. The other fields of the provider specification are not
// properties of a VM.
func (d *Driver) UpdateMachine(ctx context.Context, req *driver.UpdateMachineRequest) (*driver.UpdateMachineResponse, error) {
	return machineCall(ctx, d, UpdateMachine, request{req.Machine, req.MachineClass, req.Secret, spec.Parse}, func(c call) (*driver.UpdateMachineResponse, error) {
		v, err := d.cloud.find(c)
		if err != nil {
			return nil, err
		}
		resp := differences(v, d.newVM(c, req.MachineClass))
		if req.DryRun || len(resp.Updates) == 0 {
			return resp, nil
		}
		exists, err := d.cloud.update(v.ProviderID, c.spec.Tags)
		if err == nil && !exists {
			err = status.Error(codes.NotFound, "the VM no longer exists")
		}
		return resp, err
	})
}

// differences compares a VM with the VM that a request would create.
func differences(v, want VM) *driver.UpdateMachineResponse {
	resp := &driver.UpdateMachineResponse{}
	if !maps.Equal(v.Tags, want.Tags) {
		resp.Updates = append(resp.Updates, "tags")
	}
	if v.Pool != want.Pool {
		resp.Replacements = append(resp.Replacements, "pool")
	}
	if v.Zone != want.Zone {
		resp.Replacements = append(resp.Replacements, "zone: a VM cannot move")
	}
	if v.Node == nil || want.Node == nil {
		return resp
	}
	if !maps.Equal(v.Node.Labels, want.Node.Labels) {
		resp.Replacements = append(resp.Replacements, "nodeLabels: the kubelet sets them once")
	}
	if !equality.Semantic.DeepEqual(v.Node.Taints, want.Node.Taints) {
		resp.Replacements = append(resp.Replacements, "nodeTaints: the kubelet sets them once")
	}
	return resp
}

// update replaces the tags of a VM and reports whether the VM exists.
func (c *Cloud) update(id string, tags map[string]string) (exists bool, err error) {
	err = c.locked(func() error {
		vms := c.store.get(id)
		if exists = len(vms) > 0; !exists {
			return nil
		}
		v := vms[0]
		v.Tags = maps.Clone(tags)
		return c.store.add(change{Entry: effectOn(v, Updated), VM: &v})
	})
	return exists, err
}
