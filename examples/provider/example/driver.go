// Package example is a driver for the cloud of this example.
package example

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/examples/provider/cloud"
)

// Driver implements driver.Driver. Create one with New.
type Driver struct{ url string }

var _ driver.Driver = (*Driver)(nil)

// New returns a driver for the cloud at a URL.
func New(cloudURL string) (*Driver, error) {
	if u, err := url.Parse(cloudURL); err != nil || u.Host == "" {
		return nil, fmt.Errorf("--example-url: %q is not a URL", cloudURL)
	}
	return &Driver{url: cloudURL}, nil
}

const (
	scheme = "example:///"
	// machineTag is a tag with the namespace and name of the Machine of a VM.
	machineTag = "machine"
)

// CreateMachine implements driver.Driver. It is idempotent because the cloud requires unique names of VMs.
func (d *Driver) CreateMachine(ctx context.Context, req *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
	if err := checkName(req.Machine); err != nil {
		return nil, err
	}
	spec, err := parse(req.MachineClass)
	if err != nil {
		return nil, err
	}
	desired := cloud.VM{Name: spec.name(req.Machine), Size: spec.Size, Tags: maps.Clone(spec.Tags), UserData: req.Secret.Data["userData"]}
	desired.Tags[machineTag] = key(req.Machine)
	vm, err := d.client(req.Secret).Create(ctx, desired)
	if is(err, http.StatusConflict) {
		found, err := d.find(ctx, req.Machine, req.MachineClass, req.Secret)
		switch {
		case err != nil && !status.Is(err, codes.NotFound):
			return nil, err
		case err != nil || found.Size != desired.Size:
			return nil, status.Error(codes.AlreadyExists, fmt.Sprintf("VM %s exists but does not fit the request", desired.Name))
		}
		return &driver.CreateMachineResponse{ProviderID: scheme + found.ID, NodeName: req.Machine.Name}, nil
	}
	if err != nil {
		return nil, coded(ctx, err)
	}
	return &driver.CreateMachineResponse{ProviderID: scheme + vm.ID, NodeName: req.Machine.Name}, nil
}

// GetMachineStatus implements driver.Driver.
func (d *Driver) GetMachineStatus(ctx context.Context, req *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
	vm, err := d.find(ctx, req.Machine, req.MachineClass, req.Secret)
	if err != nil {
		return nil, err
	}
	return &driver.GetMachineStatusResponse{ProviderID: scheme + vm.ID, NodeName: req.Machine.Name}, nil
}

// DeleteMachine implements driver.Driver.
func (d *Driver) DeleteMachine(ctx context.Context, req *driver.DeleteMachineRequest) (*driver.DeleteMachineResponse, error) {
	vm, err := d.find(ctx, req.Machine, req.MachineClass, req.Secret)
	if status.Is(err, codes.NotFound) {
		return &driver.DeleteMachineResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	if err := d.client(req.Secret).Delete(ctx, vm.ID); err != nil && !is(err, http.StatusNotFound) {
		return nil, coded(ctx, err)
	}
	return &driver.DeleteMachineResponse{}, nil
}

// ListMachines implements driver.Driver.
func (d *Driver) ListMachines(ctx context.Context, req *driver.ListMachinesRequest) (*driver.ListMachinesResponse, error) {
	spec, err := parseTags(req.MachineClass)
	if err != nil {
		return nil, err
	}
	vms, err := d.client(req.Secret).List(ctx, spec.Tags)
	if err != nil {
		return nil, coded(ctx, err)
	}
	machines := map[string]string{}
	for _, vm := range vms {
		// A VM without the tag is not ours: another user has given it the same tags.
		if _, name, ok := strings.Cut(vm.Tags[machineTag], "/"); ok {
			machines[scheme+vm.ID] = name
		}
	}
	return &driver.ListMachinesResponse{MachineList: machines}, nil
}

// find returns the VM of a machine: by its ID if that is known, otherwise by the name and the cluster's tags. The
// error is NotFound if the VM does not exist.
func (d *Driver) find(ctx context.Context, machine *v1alpha1.Machine, class *v1alpha1.MachineClass, secret *corev1.Secret) (*cloud.VM, error) {
	if err := checkName(machine); err != nil {
		return nil, err
	}
	spec, err := parseTags(class)
	if err != nil {
		return nil, err
	}
	none := status.Error(codes.NotFound, fmt.Sprintf("machine %s has no VM", key(machine)))
	if machine.Spec.ProviderID != "" {
		vm, err := d.client(secret).Get(ctx, strings.TrimPrefix(machine.Spec.ProviderID, scheme))
		switch {
		case is(err, http.StatusNotFound):
			return nil, none
		case err != nil:
			return nil, coded(ctx, err)
		case vm.Tags[machineTag] != key(machine):
			return nil, none
		}
		return &vm, nil
	}
	tags := maps.Clone(spec.Tags)
	tags[machineTag] = key(machine)
	vms, err := d.client(secret).List(ctx, tags)
	switch {
	case err != nil:
		return nil, coded(ctx, err)
	case len(vms) == 0:
		return nil, none
	case len(vms) > 1:
		return nil, status.Error(codes.OutOfRange, fmt.Sprintf("machine %[2]s has %[1]d VMs", len(vms), key(machine)))
	}
	return &vms[0], nil
}

func (d *Driver) client(secret *corev1.Secret) cloud.Client {
	return cloud.Client{URL: d.url, Token: strings.TrimSpace(string(secret.Data["token"]))}
}

func key(machine *v1alpha1.Machine) string { return machine.Namespace + "/" + machine.Name }

// is reports whether an error is a response of the cloud with the given HTTP status.
func is(err error, httpStatus int) bool {
	response, ok := errors.AsType[*cloud.Error](err)
	return ok && response.Status == httpStatus
}

// statusCodes maps HTTP statuses of the cloud to codes. Other statuses are Unknown and are retried.
var statusCodes = map[int]codes.Code{
	http.StatusBadRequest:          codes.InvalidArgument,
	http.StatusUnauthorized:        codes.Unauthenticated,
	http.StatusForbidden:           codes.PermissionDenied,
	http.StatusInsufficientStorage: codes.ResourceExhausted,
}

// coded adds a code to an error of the client.
func coded(ctx context.Context, err error) error {
	if response, ok := errors.AsType[*cloud.Error](err); ok {
		if code, known := statusCodes[response.Status]; known {
			return status.WrapError(code, "the cloud returned an error: "+response.Message, err)
		}
		return status.WrapError(codes.Unknown, "the cloud returned an error: "+response.Message, err)
	}
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return status.WrapError(codes.DeadlineExceeded, "the cloud did not respond in time", err)
	case ctx.Err() != nil:
		return status.WrapError(codes.Canceled, "the call was canceled", err)
	}
	return status.WrapError(codes.Unavailable, "cannot reach the cloud: "+err.Error(), err)
}
