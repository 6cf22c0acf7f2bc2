package vm

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// delete deletes the VM, and a Secret that an incomplete creation may have left without a VM.
func (d *Driver) delete(ctx context.Context, c call) error {
	ctx, cancel := context.WithTimeout(ctx, d.options.Timeout)
	defer cancel()
	if c.providerID != "" && c.uuid == "" {
		return nil // the ID belongs to another driver
	}
	vm, err := c.get(ctx)
	switch {
	case err != nil:
		return err
	case vm == nil:
		return c.removeUserData(ctx)
	case !c.isRequested(vm):
		return nil
	}
	return c.remove(ctx, vm, client.Preconditions{UID: &vm.UID})
}

// remove deletes a VM, waits until it is gone, and deletes its Secret.
//
// The VM controller deletes the VM's Pods and disk before it removes its finalizer. A foreground deletion, which
// waits for the garbage collector, is therefore not needed.
func (c call) remove(ctx context.Context, vm *vmv1alpha1.VirtualMachine, only client.Preconditions) error {
	if vm.DeletionTimestamp.IsZero() {
		err := c.cluster.Delete(ctx, vm, only, client.PropagationPolicy(metav1.DeletePropagationBackground))
		if err != nil && !absent(err) {
			return err
		}
	}
	_, err := c.follow(ctx, vm, func(now *vmv1alpha1.VirtualMachine) (bool, error) { return now == nil || now.UID != vm.UID, nil })
	if err != nil {
		return err
	}
	return c.removeUserData(ctx)
}

const (
	// A closed watch is restarted after rewatchDelay, which doubles up to maxRewatchDelay.
	rewatchDelay    = time.Second
	maxRewatchDelay = 16 * time.Second
	// maxEvents limits the events of a watch. It is then restarted, so that a server that sends events without end does
	// not keep a processor busy.
	maxEvents = 1000
)

// condition reports whether a VM is in the state that a call waits for. The VM is nil if it no longer exists.
type condition func(vm *vmv1alpha1.VirtualMachine) (done bool, err error)

// follow waits for a condition, starting with the given state of the VM. It returns the last state in which the VM
// existed.
func (c call) follow(ctx context.Context, vm *vmv1alpha1.VirtualMachine, met condition) (*vmv1alpha1.VirtualMachine, error) {
	delay := rewatchDelay
	for next := vm; ; delay = min(2*delay, maxRewatchDelay) {
		if next != nil {
			vm = next
		}
		done, err := met(next)
		if !done && err == nil {
			vm, done, err = c.watch(ctx, vm, met)
		}
		if done || err != nil {
			return vm, err
		}
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return vm, ctx.Err()
		}
		if next, err = c.get(ctx); err != nil {
			return vm, err
		}
	}
}

// watch waits for a condition until the watch is closed. A closed watch is not an error: servers close watches at
// any time.
func (c call) watch(ctx context.Context, vm *vmv1alpha1.VirtualMachine, met condition) (last *vmv1alpha1.VirtualMachine, done bool, err error) {
	changes, err := c.cluster.Watch(ctx, &vmv1alpha1.VirtualMachineList{}, client.InNamespace(vm.Namespace),
		client.MatchingFields{metav1.ObjectNameField: vm.Name},
		&client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: vm.ResourceVersion}})
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return vm, false, nil
	}
	if err != nil {
		return vm, false, err
	}
	defer changes.Stop()
	for range maxEvents {
		select {
		case event := <-changes.ResultChan():
			next, ok := event.Object.(*vmv1alpha1.VirtualMachine)
			if !ok { // closed, or an error, which the next read returns if it persists
				return vm, false, ctx.Err()
			}
			if vm = next; event.Type == watch.Deleted {
				next = nil
			}
			if done, err := met(next); done || err != nil {
				return vm, done, err
			}
		case <-ctx.Done():
			return vm, false, ctx.Err()
		}
	}
	return vm, false, nil
}
