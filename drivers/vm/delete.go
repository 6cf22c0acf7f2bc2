package vm

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// delete deletes the VM, and a Secret that a creation may have left without a VM.
func (d *Driver) delete(ctx context.Context, c call) error {
	ctx, cancel := context.WithTimeout(ctx, d.options.Patience)
	defer cancel()
	if c.providerID != "" && c.uuid == "" {
		return nil // the ID is not one of this driver
	}
	vm, err := c.get(ctx)
	switch {
	case err != nil:
		return err
	case vm == nil:
		return c.removeUserData(ctx)
	case !c.isWanted(vm):
		return nil
	}
	return c.remove(ctx, vm, client.Preconditions{UID: &vm.UID})
}

// remove deletes a VM, waits until it is gone, and deletes its Secret.
//
// The VM controller deletes the VM's Pods and its disk before it removes its finalizer. So
// a deletion in the foreground, which waits for the garbage collector, is not needed.
func (c call) remove(ctx context.Context, vm *vmv1alpha1.VirtualMachine, only client.Preconditions) error {
	if vm.DeletionTimestamp.IsZero() {
		err := c.cluster.Delete(ctx, vm, only, client.PropagationPolicy(metav1.DeletePropagationBackground))
		if err != nil && !absent(err) {
			return err
		}
	}
	if _, err := c.follow(ctx, vm, absence{vm.UID}); err != nil {
		return err
	}
	return c.removeUserData(ctx)
}

// absence is the condition that a VM is gone.
type absence struct{ uid types.UID }

func (a absence) observe(vm *vmv1alpha1.VirtualMachine) (bool, error) {
	return vm == nil || vm.UID != a.uid, nil
}

func (a absence) expiry() <-chan time.Time { return nil }

func (a absence) expired() {}
