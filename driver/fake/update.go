package fake

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// updatable are the fields of a provider specification that UpdateMachine changes. If the value is true, the change
// takes effect at the next start of the VM.
var updatable = map[string]bool{"tags": false, "cpus": true}

// UpdateMachine implements driver.Updater. It changes the fields "tags" and "cpus" of the provider specification,
// the latter for the next start. Any other difference needs a new VM, and so does a specification that is not an
// object. A VM without differences from another class belongs to that class from then on.
func (d *Driver) UpdateMachine(ctx context.Context, req *driver.UpdateMachineRequest) (*driver.UpdateMachineResponse, error) {
	return run(ctx, d, req, call[driver.UpdateMachineRequest, driver.UpdateMachineResponse]{
		UpdateMachine, req.Machine, &d.hooks.update, d.update,
	})
}

func (d *Driver) update(req *driver.UpdateMachineRequest) (*driver.UpdateMachineResponse, error) {
	if err := check(req.Machine, req.MachineClass); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	at := slices.IndexFunc(d.vms, d.of(req.Machine, req.MachineClass, req.Secret))
	if at < 0 {
		return nil, status.Error(codes.NotFound, fmt.Sprintf("machine %s has no VM", req.Machine.Name))
	}
	resp, becomes := differences(d.vms[at].Spec, req.MachineClass)
	if !req.DryRun {
		d.vms[at].Spec = becomes
		if len(resp.Replacements) == 0 {
			d.vms[at].Class = keyOf(req.MachineClass)
		}
	}
	return resp, nil
}

// differences compares the provider specification of a VM with that of a class. It also returns the new
// specification of the VM.
func differences(is string, class *v1alpha1.MachineClass) (*driver.UpdateMachineResponse, string) {
	resp := &driver.UpdateMachineResponse{}
	has, wants := map[string]any{}, map[string]any{}
	if json.Unmarshal([]byte(is), &has) != nil || json.Unmarshal(class.ProviderSpec.Raw, &wants) != nil {
		if is != string(class.ProviderSpec.Raw) {
			resp.Replacements = []string{"provider specification"}
		}
		return resp, is
	}
	all := maps.Clone(has)
	maps.Copy(all, wants)
	for _, field := range slices.Sorted(maps.Keys(all)) {
		restart, can := updatable[field]
		switch value, desired := wants[field]; {
		case reflect.DeepEqual(has[field], value):
			continue
		case !can:
			resp.Replacements = append(resp.Replacements, field)
			continue
		case desired:
			has[field] = value
		default:
			delete(has, field)
		}
		resp.Updates = append(resp.Updates, field)
		if restart {
			resp.AtNextStart = append(resp.AtNextStart, field)
		}
	}
	if len(resp.Updates) == 0 {
		return resp, is
	}
	becomes, _ := json.Marshal(has) // cannot fail: has was decoded from JSON
	return resp, string(becomes)
}
