package vm

import (
	"context"
	"fmt"
	"strings"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// create creates the VM or adopts the existing one, and waits until it has a host.
func (d *Driver) create(ctx context.Context, c *call) (*vmv1alpha1.VirtualMachine, error) {
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
	ctx, cancel := context.WithTimeout(ctx, d.options.Timeout)
	defer cancel()
	return d.awaitHost(ctx, *c, vm)
}

// make creates the Secret and the VM, or returns the VM that a concurrent call created.
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
		err = status.Error(codes.Aborted, fmt.Sprintf("other calls are creating and deleting VM %s", c.key))
	}
	return vm, err
}

// adopt checks that a VM fits the request, and that it has its user data.
func (c call) adopt(ctx context.Context, vm *vmv1alpha1.VirtualMachine) error {
	if !c.owns(vm) {
		return status.Error(codes.AlreadyExists, fmt.Sprintf(
			"VirtualMachine %s exists but was not created for machine %s/%s of cluster %s", c.key, c.identity.Namespace, c.identity.Machine, c.spec.cluster()))
	}
	if !vm.DeletionTimestamp.IsZero() {
		return status.Error(codes.Aborted, fmt.Sprintf("VM %s is being deleted", c.key))
	}
	if fields := c.differences(vm); len(fields) > 0 {
		return status.Error(codes.AlreadyExists, fmt.Sprintf("VM %s exists with different values of %s", c.key, strings.Join(fields, ", ")))
	}
	return c.ensureUserData(ctx, vm)
}

// placement is the scheduling state of a VM.
type placement int

const (
	pending placement = iota
	unschedulable
	// placed VMs have or had a host. They are not deleted, even if no host has capacity for their next Pod.
	placed
)

func placementOf(vm *vmv1alpha1.VirtualMachine) placement {
	scheduled := meta.FindStatusCondition(vm.Status.Conditions, vmv1alpha1.ConditionScheduled)
	switch {
	case vm.Status.ImagePrepared, vm.Status.ActiveRunID != "",
		meta.IsStatusConditionTrue(vm.Status.Conditions, vmv1alpha1.ConditionReady),
		scheduled != nil && scheduled.Status == metav1.ConditionTrue:
		return placed
	case scheduled != nil && scheduled.Status == metav1.ConditionFalse && scheduled.Reason == vmv1alpha1.ReasonUnschedulable:
		return unschedulable
	}
	return pending
}

// maxPlacements limits the changes between pending and unschedulable during a call.
const maxPlacements = 100

// awaitHost waits until the VM has a host. If no host has capacity for the duration of Options.Settle, it deletes
// the VM.
func (d *Driver) awaitHost(ctx context.Context, c call, vm *vmv1alpha1.VirtualMachine) (*vmv1alpha1.VirtualMachine, error) {
	uid := vm.UID
	for range maxPlacements {
		last, err := c.awaitChange(ctx, vm, uid, pending)
		if err == nil && placementOf(last) == unschedulable {
			last, err = d.settle(ctx, c, last)
		}
		if ctx.Err() != nil && err != nil {
			return nil, fmt.Errorf("no host was assigned: %s: %w", schedulerMessage(last), ctx.Err())
		}
		if err != nil || placementOf(last) == placed {
			return last, err
		}
		vm = last
	}
	return nil, status.Error(codes.Aborted, fmt.Sprintf("the scheduling status of VM %s has changed %d times", c.key, maxPlacements))
}

// settle waits until a VM is no longer unschedulable. After Options.Settle, it deletes the VM and returns an error.
func (d *Driver) settle(ctx context.Context, c call, vm *vmv1alpha1.VirtualMachine) (*vmv1alpha1.VirtualMachine, error) {
	settling, cancel := context.WithCancel(ctx)
	defer cancel()
	timer := d.options.Clock.AfterFunc(d.options.Settle, cancel)
	defer timer.Stop()
	last, err := c.awaitChange(settling, vm, vm.UID, unschedulable)
	if _, final := status.FromError(err); err == nil || final || settling.Err() == nil || ctx.Err() != nil {
		return last, err
	}
	// If the VM gets a host in the meantime, its resource version differs and the deletion fails.
	err = c.remove(ctx, last, client.Preconditions{UID: &last.UID, ResourceVersion: &last.ResourceVersion})
	if apierrors.IsConflict(err) {
		now, err := c.get(ctx)
		if now == nil {
			now = last // the next watch reports the deletion
		}
		return now, err
	}
	if err != nil && ctx.Err() == nil {
		return last, err
	}
	message := schedulerMessage(last)
	logr.FromContextOrDiscard(ctx).Info("Deleted a VM for which no host has capacity", "vm", c.key, "scheduler", message)
	return last, status.Error(codes.ResourceExhausted, fmt.Sprintf("no host has capacity for VM %s: %s", c.key, message))
}

// awaitChange waits until the VM with the given UID has another placement. It returns the last state even if it
// returns an error.
func (c call) awaitChange(ctx context.Context, vm *vmv1alpha1.VirtualMachine, uid types.UID, from placement) (*vmv1alpha1.VirtualMachine, error) {
	return c.follow(ctx, vm, func(vm *vmv1alpha1.VirtualMachine) (bool, error) {
		if vm == nil || vm.UID != uid || !vm.DeletionTimestamp.IsZero() {
			return false, status.Error(codes.Aborted, fmt.Sprintf("VM %s was deleted before it had a host", c.key))
		}
		return placementOf(vm) != from, nil
	})
}

// schedulerMessage returns why a VM has no host: the last message of the scheduler or, if the VM has no Pod, of the VM
// controller.
func schedulerMessage(vm *vmv1alpha1.VirtualMachine) string {
	scheduled := meta.FindStatusCondition(vm.Status.Conditions, vmv1alpha1.ConditionScheduled)
	if scheduled != nil && scheduled.Message != "" {
		return scheduled.Message
	}
	if ready := meta.FindStatusCondition(vm.Status.Conditions, vmv1alpha1.ConditionReady); ready != nil && ready.Message != "" {
		return ready.Message // there is no Pod to schedule yet
	}
	return "the VM has no scheduling status; check that the VM controller is running"
}
