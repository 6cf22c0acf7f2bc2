package capi

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
)

// scripted is a driver that does what it is told. It finds VMs by ID if one is given, by
// the machine's name otherwise.
type scripted struct {
	// vms are the IDs of VMs by machine name.
	vms map[string]string
	// failures are what the next calls of a method are answered with.
	failures map[instance.Method][]error
	// lost has the next creation work, and its answer get lost.
	lost bool
	// stays has deletions accepted without effect.
	stays bool
	// local has a VM be found only with the providerSpec that it was made with.
	local bool
	specs map[string]string
	calls []instance.Method
	// created are the requests of creations, deleted those of deletions.
	created []*driver.CreateMachineRequest
	deleted []*driver.DeleteMachineRequest
	count   int
}

var _ driver.Driver = (*scripted)(nil)

func newScripted() *scripted {
	return &scripted{vms: map[string]string{}, specs: map[string]string{}, failures: map[instance.Method][]error{}}
}

// fails has the next calls of a method fail.
func (d *scripted) fails(method instance.Method, failures ...codes.Code) {
	for _, code := range failures {
		d.failures[method] = append(d.failures[method], status.Error(code, fmt.Sprintf("out of order (%s)", code)))
	}
}

func (d *scripted) next(method instance.Method) error {
	d.calls = append(d.calls, method)
	if len(d.failures[method]) == 0 {
		return nil
	}
	err := d.failures[method][0]
	d.failures[method] = d.failures[method][1:]
	return err
}

// made counts the calls of a method.
func (d *scripted) made(method instance.Method) int {
	return len(slices.DeleteFunc(slices.Clone(d.calls), func(m instance.Method) bool { return m != method }))
}

func (d *scripted) find(name, id string, class *v1alpha1.MachineClass) (string, bool) {
	have, ok := d.vms[name]
	if d.local && d.specs[name] != string(class.ProviderSpec.Raw) {
		return "", false
	}
	return have, ok && (id == "" || id == have)
}

func (d *scripted) addresses() []corev1.NodeAddress {
	return []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: "host"}, {Type: corev1.NodeInternalIP, Address: "10.1.2.3"},
		{Type: corev1.NodeInternalIP, Address: "10.1.2.3"}, {Type: "Pigeon", Address: "roof"}, {Type: corev1.NodeExternalIP},
	}
}

func (d *scripted) CreateMachine(_ context.Context, req *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
	d.created = append(d.created, req)
	if err := d.next(instance.MethodCreate); err != nil {
		return nil, err
	}
	if _, there := d.vms[req.Machine.Name]; !there {
		d.count++
		d.vms[req.Machine.Name] = fmt.Sprintf("test:///vm-%d", d.count)
		d.specs[req.Machine.Name] = string(req.MachineClass.ProviderSpec.Raw)
	}
	if d.lost {
		d.lost = false
		return nil, status.Error(codes.DeadlineExceeded, "the answer got lost")
	}
	return &driver.CreateMachineResponse{ProviderID: d.vms[req.Machine.Name], Addresses: d.addresses(), LastKnownState: "note"}, nil
}

func (d *scripted) GetMachineStatus(_ context.Context, req *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
	if err := d.next(instance.MethodStatus); err != nil {
		return nil, err
	}
	id, ok := d.find(req.Machine.Name, req.Machine.Spec.ProviderID, req.MachineClass)
	if !ok {
		return nil, status.Error(codes.NotFound, "no such VM")
	}
	return &driver.GetMachineStatusResponse{ProviderID: id, Addresses: d.addresses()}, nil
}

func (d *scripted) DeleteMachine(_ context.Context, req *driver.DeleteMachineRequest) (*driver.DeleteMachineResponse, error) {
	d.deleted = append(d.deleted, req)
	if err := d.next(instance.MethodDelete); err != nil {
		return nil, err
	}
	if _, ok := d.find(req.Machine.Name, req.Machine.Spec.ProviderID, req.MachineClass); ok && !d.stays {
		delete(d.vms, req.Machine.Name)
	}
	return &driver.DeleteMachineResponse{}, nil
}

func (d *scripted) ListMachines(context.Context, *driver.ListMachinesRequest) (*driver.ListMachinesResponse, error) {
	return nil, status.Error(codes.Unimplemented, "not part of the controller")
}
