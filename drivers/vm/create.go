package vm

import (
	"context"
	"fmt"
	"strings"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// create creates the VM or adopts the existing one, and waits until it has a host.
func (d *Driver) create(ctx context.Context, c call) (*vmv1alpha1.VirtualMachine, error) {
	vm, err := c.get(ctx)
	if err == nil && vm == nil {
		vm, err = c.make(ctx)
	}
	if err != nil {
		return nil, err
	}
	if err := c.adopt(ctx, vm); err != nil {
		return nil, err
	}
	return d.awaitHost(ctx, c, vm)
}

// make creates the Secret and the VM. If another call created the VM meanwhile, it returns
// that one.
func (c call) make(ctx context.Context) (*vmv1alpha1.VirtualMachine, error) {
	if err := c.ensureUserData(ctx, nil); err != nil {
		return nil, err
	}
	vm := c.virtualMachine()
	err := c.cluster.Create(ctx, vm)
	if !apierrors.IsAlreadyExists(err) {
		return vm, err
	}
	vm, err = c.get(ctx)
	if err == nil && vm == nil {
		err = status.Error(codes.Aborted, fmt.Sprintf("VM %s is being created and deleted by other calls", c.key))
	}
	return vm, err
}

// adopt checks that a VM is as requested, and that it has its user data.
func (c call) adopt(ctx context.Context, vm *vmv1alpha1.VirtualMachine) error {
	if !c.owns(vm) {
		return status.Error(codes.AlreadyExists, fmt.Sprintf(
			"VirtualMachine %s exists, and was not made for machine %s/%s of cluster %s", c.key, c.identity.Namespace, c.identity.Machine, c.spec.cluster))
	}
	if !vm.DeletionTimestamp.IsZero() {
		return status.Error(codes.Aborted, fmt.Sprintf("VM %s is being deleted", c.key))
	}
	if fields := c.differences(vm); len(fields) > 0 {
		return status.Error(codes.AlreadyExists, fmt.Sprintf("VM %s exists with other values of %s", c.key, strings.Join(fields, ", ")))
	}
	return c.ensureUserData(ctx, vm)
}

// awaitHost waits until the VM has a host. If none has room, it deletes the VM.
func (d *Driver) awaitHost(ctx context.Context, c call, vm *vmv1alpha1.VirtualMachine) (*vmv1alpha1.VirtualMachine, error) {
	patience, cancel := context.WithTimeout(ctx, d.options.Patience)
	defer cancel()
	p := placement{options: d.options, key: c.key, uid: vm.UID}
	defer p.reset()
	for {
		var err error
		vm, err = c.follow(patience, vm, &p)
		if patience.Err() != nil {
			return nil, p.unfinished(patience.Err())
		}
		if err != nil || !p.refused {
			return vm, err
		}
		// If the VM gets a host at this moment, its resource version differs.
		err = c.remove(patience, vm, client.Preconditions{UID: &vm.UID, ResourceVersion: &vm.ResourceVersion})
		switch {
		case apierrors.IsConflict(err):
			if vm, err = c.get(patience); err != nil {
				return nil, err
			}
		case err != nil && patience.Err() == nil:
			return nil, err
		default:
			logr.FromContextOrDiscard(ctx).Info("Removed a VM that no host has room for", "vm", c.key, "scheduler", p.message)
			return nil, status.Error(codes.ResourceExhausted, fmt.Sprintf("no host has room for VM %s: %s", c.key, p.message))
		}
	}
}
