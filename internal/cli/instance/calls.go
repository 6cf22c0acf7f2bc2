package instance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/internal/lifecycle/bootstrap"
)

// state is what a command has found or done.
type state string

const (
	stateCreated       state = "Created"
	stateExists        state = "Exists"
	stateUninitialized state = "Uninitialized"
	stateAbsent        state = "Absent"
	stateDeleted       state = "Deleted"
	// stateUnknown: the driver tells nobody what exists.
	stateUnknown state = "Unknown"
)

// result is what a command prints about one VM.
type result struct {
	Name       string               `json:"name"`
	ProviderID string               `json:"providerID,omitempty"`
	NodeName   string               `json:"nodeName,omitempty"`
	Addresses  []corev1.NodeAddress `json:"addresses,omitempty"`
	State      state                `json:"state"`
	// DryRun says that the state is what would have been.
	DryRun bool `json:"dryRun,omitempty"`
}

// caller calls a driver about one machine.
type caller struct {
	driver  driver.Driver
	inputs  inputs
	machine *v1alpha1.Machine
	dryRun  bool
}

func newCaller(d driver.Driver, in inputs, name, id string) *caller {
	machine := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: cmp.Or(in.class.Namespace, metav1.NamespaceDefault), Name: name}}
	machine.Spec.Class = v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: in.class.Name}
	machine.Spec.ProviderID = id
	in.class.Namespace = machine.Namespace
	return &caller{driver: d, inputs: in, machine: machine}
}

// status returns what there is.
func (c *caller) status(ctx context.Context) (result, error) {
	r := result{Name: c.machine.Name, ProviderID: c.machine.Spec.ProviderID}
	resp, err := c.driver.GetMachineStatus(ctx, &driver.GetMachineStatusRequest{Machine: c.machine, MachineClass: c.inputs.class, Secret: c.inputs.secret})
	switch code := status.Code(err); {
	case err == nil && resp != nil, code == codes.Uninitialized && resp != nil:
		r.ProviderID, r.NodeName, r.Addresses, r.State = resp.ProviderID, resp.NodeName, resp.Addresses, stateExists
		if code == codes.Uninitialized {
			r.State = stateUninitialized
		}
	case err == nil:
		return r, errors.New("the driver answered nothing")
	case code == codes.NotFound:
		r.State = stateAbsent
	case code == codes.Unimplemented:
		r.State = stateUnknown
	default:
		return r, err
	}
	return r, nil
}

// create creates the VM unless it exists, and initialises it.
func (c *caller) create(ctx context.Context) (result, error) {
	found, err := c.status(ctx)
	if err != nil {
		return found, fmt.Errorf("GetMachineStatus: %w", err)
	}
	created := found.State == stateAbsent || found.State == stateUnknown
	if c.dryRun {
		found.DryRun = true
		if created {
			found.State = stateCreated
		}
		return found, nil
	}
	secret := c.inputs.secret.DeepCopy()
	secret.Data[bootstrap.UserDataKey] = bootstrap.Render(secret.Data[bootstrap.UserDataKey], c.machine.Name, "")
	if created {
		resp, err := c.driver.CreateMachine(ctx, &driver.CreateMachineRequest{Machine: c.machine, MachineClass: c.inputs.class, Secret: secret})
		if err != nil {
			return found, fmt.Errorf("CreateMachine: %w", err)
		}
		found.ProviderID, found.NodeName, found.Addresses, found.State = resp.ProviderID, resp.NodeName, resp.Addresses, stateCreated
	}
	if !created && found.State != stateUninitialized {
		return found, nil
	}
	return c.initialize(ctx, found, secret)
}

func (c *caller) initialize(ctx context.Context, made result, secret *corev1.Secret) (result, error) {
	initializer, ok := c.driver.(driver.Initializer)
	if !ok {
		return made, nil
	}
	resp, err := initializer.InitializeMachine(ctx, &driver.InitializeMachineRequest{Machine: c.machine, MachineClass: c.inputs.class, Secret: secret})
	switch {
	case status.Code(err) == codes.Unimplemented:
	case err != nil:
		return made, fmt.Errorf("the VM %s exists, but InitializeMachine: %w", made.ProviderID, err)
	case len(resp.Addresses) > 0:
		made.Addresses = resp.Addresses
	}
	if made.State == stateUninitialized {
		made.State = stateExists
	}
	return made, nil
}

// remove deletes the VM, and waits until it is gone.
func (c *caller) remove(ctx context.Context) (result, error) {
	if c.dryRun {
		found, err := c.status(ctx)
		if found.DryRun = true; found.State == stateExists || found.State == stateUninitialized {
			found.State = stateDeleted
		}
		return found, err
	}
	gone := result{Name: c.machine.Name, ProviderID: c.machine.Spec.ProviderID, State: stateDeleted}
	_, err := c.driver.DeleteMachine(ctx, &driver.DeleteMachineRequest{Machine: c.machine, MachineClass: c.inputs.class, Secret: c.inputs.secret})
	if err != nil && status.Code(err) != codes.NotFound {
		return gone, fmt.Errorf("DeleteMachine: %w", err)
	}
	err = wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		found, err := c.status(ctx)
		return found.State == stateAbsent || found.State == stateUnknown, err
	})
	if err != nil {
		return gone, fmt.Errorf("the deletion was accepted, but the VM is not gone yet: %w", err)
	}
	return gone, nil
}

// list returns the VMs of the class, sorted by name.
func (c *caller) list(ctx context.Context) ([]result, error) {
	resp, err := c.driver.ListMachines(ctx, &driver.ListMachinesRequest{MachineClass: c.inputs.class, Secret: c.inputs.secret})
	if err != nil {
		return nil, fmt.Errorf("ListMachines: %w", err)
	}
	all := []result{}
	for _, id := range slices.Sorted(maps.Keys(resp.MachineList)) {
		all = append(all, result{Name: resp.MachineList[id], ProviderID: id, State: stateExists})
	}
	slices.SortStableFunc(all, func(a, b result) int { return cmp.Compare(a.Name, b.Name) })
	return all, nil
}
