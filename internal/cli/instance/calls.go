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
	"github.com/millwright-dev/millwright/internal/lifecycle/bootstrap/userdata"
	"github.com/millwright-dev/millwright/internal/reconcile/validation"
)

// state is what a command has found or done.
type state string

const (
	stateCreated       state = "Created"
	stateExists        state = "Exists"
	stateUninitialized state = "Uninitialized"
	stateAbsent        state = "Absent"
	stateDeleted       state = "Deleted"
	// stateUnknown: the driver does not report which VMs exist.
	stateUnknown state = "Unknown"
)

// result is what a command prints about one VM.
type result struct {
	Name       string               `json:"name"`
	ProviderID string               `json:"providerID,omitempty"`
	NodeName   string               `json:"nodeName,omitempty"`
	Addresses  []corev1.NodeAddress `json:"addresses,omitempty"`
	State      state                `json:"state"`
	// DryRun means that the state is what it would have been.
	DryRun bool `json:"dryRun,omitempty"`
}

// inputs is the content of the files.
type inputs struct {
	class  *v1alpha1.MachineClass
	secret *corev1.Secret
}

// check validates the inputs of a creation.
func (in inputs) check() error {
	if errs := validation.MachineClass(in.class); len(errs) > 0 {
		return fmt.Errorf("the MachineClass is not valid: %w", errs.ToAggregate())
	}
	if _, ok := in.secret.Data[bootstrap.UserDataKey]; !ok {
		return errors.New("no Secret has the key " + bootstrap.UserDataKey + "; set --secret to a file with a Secret that has it")
	}
	return nil
}

// caller calls a driver for one machine. The driver returns either a response or an error; see package
// instrument.
type caller struct {
	driver  driver.Driver
	inputs  inputs
	machine *v1alpha1.Machine
	dryRun  bool
	// progress reports what the command waits for.
	progress func(text string)
}

func newCaller(d driver.Driver, in inputs, name, id string) *caller {
	machine := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: cmp.Or(in.class.Namespace, metav1.NamespaceDefault), Name: name}}
	machine.Spec.Class = v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: in.class.Name}
	machine.Spec.ProviderID = id
	in.class.Namespace = machine.Namespace
	return &caller{driver: d, inputs: in, machine: machine, progress: func(string) {}}
}

// status returns the state of the VM.
func (c *caller) status(ctx context.Context) (result, error) {
	r := result{Name: c.machine.Name, ProviderID: c.machine.Spec.ProviderID}
	resp, err := c.driver.GetMachineStatus(ctx, &driver.GetMachineStatusRequest{Machine: c.machine.DeepCopy(), MachineClass: c.inputs.class, Secret: c.inputs.secret})
	switch status.Code(err) {
	case codes.OK:
		r.State = stateExists
	case codes.Uninitialized:
		r.State = stateUninitialized
	case codes.NotFound:
		r.State = stateAbsent
		return r, nil
	case codes.Unimplemented:
		r.State = stateUnknown
		return r, nil
	default:
		return r, err
	}
	r.ProviderID, r.NodeName, r.Addresses = resp.ProviderID, resp.NodeName, resp.Addresses
	return r, nil
}

// create creates the VM unless it exists, and initializes it.
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
	if secret.Data[bootstrap.UserDataKey], err = userdata.Render(secret.Data[bootstrap.UserDataKey], c.machine.Name, ""); err != nil {
		return found, err
	}
	if created {
		resp, err := c.driver.CreateMachine(ctx, &driver.CreateMachineRequest{Machine: c.machine.DeepCopy(), MachineClass: c.inputs.class, Secret: secret})
		if err != nil && (resp == nil || status.Code(err) != codes.Uninitialized) {
			return found, fmt.Errorf("CreateMachine: %w", err)
		}
		found.ProviderID, found.NodeName, found.Addresses, found.State = resp.ProviderID, resp.NodeName, resp.Addresses, stateCreated
	}
	if found.ProviderID == "" {
		return found, errors.New("the VM exists, but the driver returned no provider ID, which its contract requires; check the driver with the command conformance")
	}
	if !created && found.State != stateUninitialized {
		return found, nil
	}
	return c.initialize(ctx, found, secret)
}

// initialize calls InitializeMachine, for a machine with its provider ID, as the controllers do.
func (c *caller) initialize(ctx context.Context, made result, secret *corev1.Secret) (result, error) {
	initializer, ok := driver.As[driver.Initializer](c.driver)
	if !ok {
		return made, nil
	}
	machine := c.machine.DeepCopy()
	machine.Spec.ProviderID = made.ProviderID
	resp, err := initializer.InitializeMachine(ctx, &driver.InitializeMachineRequest{Machine: machine, MachineClass: c.inputs.class, Secret: secret})
	switch {
	case status.Code(err) == codes.Unimplemented:
	case err != nil:
		return made, fmt.Errorf("the VM %s exists, but InitializeMachine failed: %w", made.ProviderID, err)
	default: // the new addresses or all of them, depending on the driver
		for _, address := range resp.Addresses {
			if !slices.Contains(made.Addresses, address) {
				made.Addresses = append(made.Addresses, address)
			}
		}
	}
	if made.State == stateUninitialized {
		made.State = stateExists
	}
	return made, nil
}

// remove deletes the VM and waits until it is gone.
func (c *caller) remove(ctx context.Context) (result, error) {
	if c.dryRun {
		found, err := c.status(ctx)
		if found.DryRun = true; found.State == stateExists || found.State == stateUninitialized {
			found.State = stateDeleted
		}
		return found, err
	}
	gone := result{Name: c.machine.Name, ProviderID: c.machine.Spec.ProviderID, State: stateDeleted}
	_, err := c.driver.DeleteMachine(ctx, &driver.DeleteMachineRequest{Machine: c.machine.DeepCopy(), MachineClass: c.inputs.class, Secret: c.inputs.secret})
	if err != nil && status.Code(err) != codes.NotFound {
		return gone, fmt.Errorf("DeleteMachine: %w", err)
	}
	gone.State, err = c.untilGone(ctx)
	if err != nil {
		return gone, fmt.Errorf("the deletion was accepted, but the VM still exists: %w; check it with the command status", err)
	}
	return gone, nil
}

// final are the codes after which retrying is useless.
var final = []codes.Code{
	codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated, codes.FailedPrecondition, codes.OutOfRange, codes.DataLoss,
}

// untilGone waits until the VM is gone: the state is then stateDeleted, or stateUnknown if the driver does not
// report which VMs exist. Temporary errors of the provider are retried.
func (c *caller) untilGone(ctx context.Context) (state, error) {
	end, last, reported := stateDeleted, error(nil), ""
	err := wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		now, err := c.left(ctx)
		end, last = stateDeleted, err
		switch {
		case slices.Contains(final, status.Code(err)):
			return false, err
		case err == nil && now == stateUnknown:
			end = stateUnknown
			return true, nil
		case err == nil && now == stateAbsent:
			return true, nil
		}
		text := "the VM still exists"
		if err != nil {
			text = err.Error()
		}
		if text != reported {
			c.progress("Waiting until the VM is gone: " + text)
			reported = text
		}
		return false, nil
	})
	if ctx.Err() != nil && last != nil {
		err = last
	}
	return end, err
}

// left reports whether the VM still exists. If the driver does not implement GetMachineStatus, the list of VMs
// is used.
func (c *caller) left(ctx context.Context) (state, error) {
	found, err := c.status(ctx)
	if err != nil || found.State != stateUnknown {
		return found.State, err
	}
	listed, err := c.list(ctx)
	switch {
	case status.Is(err, codes.Unimplemented):
		return stateUnknown, nil
	case err != nil:
		return stateUnknown, err
	case slices.ContainsFunc(listed, func(r result) bool {
		return r.Name == c.machine.Name && (c.machine.Spec.ProviderID == "" || r.ProviderID == c.machine.Spec.ProviderID)
	}):
		return stateExists, nil
	}
	return stateAbsent, nil
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
