// Package fake is a driver for unit tests that keeps its VMs in memory.
//
// A new [Driver] complies with the contract of package driver: creation is idempotent, a VM's ID is never reused,
// and a deleted VM is gone. A test can make it misbehave:
//
//	d := fake.New(fake.Config{})
//	d.Fail(fake.CreateMachine, codes.ResourceExhausted, codes.OK)  // the first call fails
//	d.FailAfter(fake.DeleteMachine, codes.DeadlineExceeded)        // the response is lost
//	d.OnCreate(fake.Always[driver.CreateMachineRequest, driver.CreateMachineResponse](nil, nil)) // an invalid result
//	block := d.Block(fake.GetMachineStatus)                        // calls wait
//	<-block.Entered()
//	block.Release()
//
// [Driver.Calls] and [Requests] return the calls; [Driver.VMs] returns the existing VMs.
//
// A VM belongs to the class that it was created from, identified by namespace and name. Other classes neither find
// nor delete it. To get a driver without optional methods, use struct{ driver.Driver }{d}.
//
// Package sim simulates delays, nodes that join, capacity, and VMs that outlive a process.
package fake

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// Method names a method of the driver.
type Method string

// The methods that are recorded, and that can be made to fail or wait.
const (
	CreateMachine     Method = "CreateMachine"
	DeleteMachine     Method = "DeleteMachine"
	GetMachineStatus  Method = "GetMachineStatus"
	ListMachines      Method = "ListMachines"
	InitializeMachine Method = "InitializeMachine"
	UpdateMachine     Method = "UpdateMachine"
)

// Config configures a [Driver]. With the zero value, all calls succeed.
type Config struct {
	// NodeName returns the name of a machine's node. If nil, the node has the machine's name.
	NodeName func(*v1alpha1.Machine) string
	// ProviderID returns the ID of a new VM; number counts all VMs of the driver, from 1. If nil, IDs have the form
	// "fake:///NAMESPACE/MACHINE/NUMBER".
	ProviderID func(machine *v1alpha1.Machine, number int) string
	// Addresses of every VM. Optional.
	Addresses []corev1.NodeAddress
	// LastKnownState of the responses to creations and deletions. Optional.
	LastKnownState string
	// RequireInitialize makes GetMachineStatus return Uninitialized until InitializeMachine has been called for the
	// VM. If false, InitializeMachine returns Unimplemented.
	RequireInitialize bool
	// IgnoreDeletes makes DeleteMachine return OK without effect.
	IgnoreDeletes bool
	// IgnoreContext makes calls take effect even if their context is done.
	IgnoreContext bool
	// MatchSpec makes the driver find a VM only with the provider specification that it was created with.
	MatchSpec bool
	// Accounts separates the VMs of accounts. The Secret names its account under "account". The driver is then a
	// [driver.Locator].
	Accounts bool
	// SeparateAPIGroups separates the VMs of API groups; see [driver.APIGroupSeparator].
	SeparateAPIGroups bool
}

// VM is a VM of the provider.
type VM struct {
	// ProviderID as returned by Config.ProviderID.
	ProviderID string
	// Namespace and Machine name the Machine that the VM was created for.
	Namespace, Machine string
	// NodeName is the name of the VM's node.
	NodeName string
	// Class is "namespace/name" of the VM's class; Spec is the provider specification of the class.
	Class, Spec string
	// APIGroup is the API group of the VM's class; see driver.AnnotationAPIGroup.
	APIGroup string
	// Account is the account in the Secret.
	Account string
	// Initialized is false while GetMachineStatus returns Uninitialized.
	Initialized bool
}

// Driver is a driver for unit tests. Create it with [New]. All methods may be called concurrently.
type Driver struct {
	mu     sync.Mutex
	config Config
	vms    []VM
	made   int
	script map[Method][]failure
	blocks map[Method]*Block
	calls  []*Call
	// running counts the calls in progress, by machine.
	running map[string]int
	hooks   hooks
}

var (
	_ driver.Driver            = (*Driver)(nil)
	_ driver.Initializer       = (*Driver)(nil)
	_ driver.APIGroupSeparator = (*Driver)(nil)
	_ driver.Locator           = (*Driver)(nil)
	_ driver.Updater           = (*Driver)(nil)
)

// New returns a driver without VMs.
func New(config Config) *Driver {
	return &Driver{config: config, script: map[Method][]failure{}, blocks: map[Method]*Block{}, running: map[string]int{}}
}

// Configure changes the configuration of the driver.
func (d *Driver) Configure(change func(*Config)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(&d.config)
}

// SeparatesAPIGroups implements driver.APIGroupSeparator.
func (d *Driver) SeparatesAPIGroups() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.config.SeparateAPIGroups
}

// VMs returns the existing VMs in the order of their creation.
func (d *Driver) VMs() []VM {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.vms)
}

// Add creates a VM without a call of the driver and returns it. If ProviderID is empty, a new ID is generated. If
// NodeName is empty, the machine's name is used.
func (d *Driver) Add(vm VM) VM {
	d.mu.Lock()
	defer d.mu.Unlock()
	if vm.NodeName == "" {
		vm.NodeName = vm.Machine
	}
	return d.add(vm)
}

// Remove deletes a VM without a call of the driver.
func (d *Driver) Remove(providerID string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.vms = slices.DeleteFunc(d.vms, func(vm VM) bool { return vm.ProviderID == providerID })
}

func (d *Driver) add(vm VM) VM {
	d.made++
	if vm.ProviderID == "" {
		vm.ProviderID = fmt.Sprintf("fake:///%s/%s/%d", vm.Namespace, vm.Machine, d.made)
	}
	d.vms = append(d.vms, vm)
	return vm
}

// CreateMachine implements driver.Driver.
func (d *Driver) CreateMachine(ctx context.Context, req *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
	return run(ctx, d, req, call[driver.CreateMachineRequest, driver.CreateMachineResponse]{
		CreateMachine, req.Machine, &d.hooks.create, d.create,
	})
}

func (d *Driver) create(req *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
	if err := check(req.Machine, req.MachineClass); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	vm, exists := d.named(req.Machine, req.MachineClass, req.Secret)
	if !exists {
		vm = d.add(d.plan(req))
	} else if vm.Class != keyOf(req.MachineClass) {
		return nil, status.Error(codes.AlreadyExists, fmt.Sprintf("VM %s belongs to another class", vm.ProviderID))
	}
	return &driver.CreateMachineResponse{
		ProviderID: vm.ProviderID, NodeName: vm.NodeName, Addresses: slices.Clone(d.config.Addresses), LastKnownState: d.config.LastKnownState,
	}, nil
}

// named returns the VM with a machine's name, of any class.
func (d *Driver) named(machine *v1alpha1.Machine, class *v1alpha1.MachineClass, secret *corev1.Secret) (VM, bool) {
	for _, vm := range d.vms {
		if vm.Namespace == machine.Namespace && vm.Machine == machine.Name && d.inGroup(vm, class) && d.inAccount(vm, secret) {
			return vm, true
		}
	}
	return VM{}, false
}

// inGroup reports whether a VM may belong to the class's API group. The caller holds the lock.
func (d *Driver) inGroup(vm VM, class *v1alpha1.MachineClass) bool {
	return !d.config.SeparateAPIGroups || vm.APIGroup == driver.APIGroup(class)
}

// plan returns the VM that a creation requests.
func (d *Driver) plan(req *driver.CreateMachineRequest) VM {
	vm := VM{
		Namespace: req.Machine.Namespace, Machine: req.Machine.Name, NodeName: req.Machine.Name,
		Account: accountOf(req.Secret), Class: keyOf(req.MachineClass), Spec: string(req.MachineClass.ProviderSpec.Raw),
		APIGroup: driver.APIGroup(req.MachineClass), Initialized: !d.config.RequireInitialize,
	}
	if d.config.ProviderID != nil {
		vm.ProviderID = d.config.ProviderID(req.Machine, d.made+1)
	}
	if d.config.NodeName != nil {
		vm.NodeName = d.config.NodeName(req.Machine)
	}
	return vm
}

// DeleteMachine implements driver.Driver.
func (d *Driver) DeleteMachine(ctx context.Context, req *driver.DeleteMachineRequest) (*driver.DeleteMachineResponse, error) {
	return run(ctx, d, req, call[driver.DeleteMachineRequest, driver.DeleteMachineResponse]{
		DeleteMachine, req.Machine, &d.hooks.delete, d.delete,
	})
}

func (d *Driver) delete(req *driver.DeleteMachineRequest) (*driver.DeleteMachineResponse, error) {
	if err := check(req.Machine, req.MachineClass); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.config.IgnoreDeletes {
		d.vms = slices.DeleteFunc(d.vms, d.of(req.Machine, req.MachineClass, req.Secret))
	}
	return &driver.DeleteMachineResponse{LastKnownState: d.config.LastKnownState}, nil
}

// GetMachineStatus implements driver.Driver.
func (d *Driver) GetMachineStatus(ctx context.Context, req *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
	return run(ctx, d, req, call[driver.GetMachineStatusRequest, driver.GetMachineStatusResponse]{
		GetMachineStatus, req.Machine, &d.hooks.status, d.status,
	})
}

func (d *Driver) status(req *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
	vm, err := d.find(req.Machine, req.MachineClass, req.Secret)
	if err != nil {
		return nil, err
	}
	resp := &driver.GetMachineStatusResponse{ProviderID: vm.ProviderID, NodeName: vm.NodeName, Addresses: d.addresses()}
	if !vm.Initialized {
		return resp, status.Error(codes.Uninitialized, fmt.Sprintf("VM %s is not initialized", vm.ProviderID))
	}
	return resp, nil
}

// ListMachines implements driver.Driver.
func (d *Driver) ListMachines(ctx context.Context, req *driver.ListMachinesRequest) (*driver.ListMachinesResponse, error) {
	return run(ctx, d, req, call[driver.ListMachinesRequest, driver.ListMachinesResponse]{
		ListMachines, nil, &d.hooks.list, d.list,
	})
}

func (d *Driver) list(req *driver.ListMachinesRequest) (*driver.ListMachinesResponse, error) {
	if err := checkSpec(req.MachineClass); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	resp := &driver.ListMachinesResponse{MachineList: map[string]string{}}
	for _, vm := range d.vms {
		if vm.Class == keyOf(req.MachineClass) && d.inGroup(vm, req.MachineClass) {
			resp.MachineList[vm.ProviderID] = vm.Machine
		}
	}
	return resp, nil
}

// InitializeMachine implements driver.Initializer.
func (d *Driver) InitializeMachine(ctx context.Context, req *driver.InitializeMachineRequest) (*driver.InitializeMachineResponse, error) {
	return run(ctx, d, req, call[driver.InitializeMachineRequest, driver.InitializeMachineResponse]{
		InitializeMachine, req.Machine, &d.hooks.initialize, d.initialize,
	})
}

func (d *Driver) initialize(req *driver.InitializeMachineRequest) (*driver.InitializeMachineResponse, error) {
	d.mu.Lock()
	needed := d.config.RequireInitialize
	d.mu.Unlock()
	if !needed {
		return nil, status.Error(codes.Unimplemented, "these VMs need no initialization")
	}
	vm, err := d.find(req.Machine, req.MachineClass, req.Secret)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.vms {
		if d.vms[i].ProviderID == vm.ProviderID {
			d.vms[i].Initialized = true
		}
	}
	return &driver.InitializeMachineResponse{ProviderID: vm.ProviderID, NodeName: vm.NodeName, Addresses: slices.Clone(d.config.Addresses)}, nil
}

func (d *Driver) find(machine *v1alpha1.Machine, class *v1alpha1.MachineClass, secret *corev1.Secret) (VM, error) {
	if err := check(machine, class); err != nil {
		return VM{}, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if at := slices.IndexFunc(d.vms, d.of(machine, class, secret)); at >= 0 {
		return d.vms[at], nil
	}
	return VM{}, status.Error(codes.NotFound, fmt.Sprintf("machine %s has no VM", machine.Name))
}

// LocateMachine implements driver.Locator. The location is the account in the Secret.
func (d *Driver) LocateMachine(_ context.Context, req *driver.LocateMachineRequest) (*driver.LocateMachineResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.config.Accounts {
		return nil, status.Error(codes.Unimplemented, "all VMs are in one account")
	}
	return &driver.LocateMachineResponse{Location: "account " + accountOf(req.Secret)}, nil
}

// Move moves all VMs to an account without a call of the driver.
func (d *Driver) Move(account string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.vms {
		d.vms[i].Account = account
	}
}

func accountOf(secret *corev1.Secret) string {
	if secret == nil {
		return ""
	}
	return string(secret.Data["account"])
}

// inAccount reports whether a VM belongs to the account in the Secret. The caller holds the lock.
func (d *Driver) inAccount(vm VM, secret *corev1.Secret) bool {
	return !d.config.Accounts || vm.Account == accountOf(secret)
}

// of returns a function that reports whether a VM belongs to a machine: by ID if the machine has one, and by name
// and class otherwise.
func (d *Driver) of(machine *v1alpha1.Machine, class *v1alpha1.MachineClass, secret *corev1.Secret) func(VM) bool {
	return func(vm VM) bool {
		if !d.inAccount(vm, secret) || !d.inGroup(vm, class) || d.config.MatchSpec && vm.Spec != string(class.ProviderSpec.Raw) {
			return false
		}
		if id := machine.Spec.ProviderID; id != "" {
			return vm.ProviderID == id
		}
		return vm.Class == keyOf(class) && vm.Namespace == machine.Namespace && vm.Machine == machine.Name
	}
}

func (d *Driver) addresses() []corev1.NodeAddress {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.config.Addresses)
}

func check(machine *v1alpha1.Machine, class *v1alpha1.MachineClass) error {
	if machine == nil || machine.Name == "" || class == nil {
		return status.Error(codes.InvalidArgument, "the request has no machine or no class")
	}
	return checkSpec(class)
}

// checkSpec rejects provider specifications that are JSON but not objects. The class of a test may have any other
// text.
func checkSpec(class *v1alpha1.MachineClass) error {
	raw := bytes.TrimSpace(class.ProviderSpec.Raw)
	if len(raw) > 0 && raw[0] != '{' && json.Valid(raw) {
		return status.Error(codes.InvalidArgument, "providerSpec is not an object")
	}
	return nil
}

func keyOf(class *v1alpha1.MachineClass) string { return class.Namespace + "/" + class.Name }
