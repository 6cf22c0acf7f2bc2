package vm

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// delete removes the VM, and the Secret that a creation may have left without a VM.
func (d *Driver) delete(ctx context.Context, c call) error {
	ctx, cancel := context.WithTimeout(ctx, d.options.Patience)
	defer cancel()
	if c.providerID != "" && c.uuid == "" {
		return nil // an ID that this driver never gave
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
// What hangs on the VM, its Pods and its disk, is removed by the VM controller in an
// order of its own before it lets go of the VM. So there is no need for a deletion in the
// foreground, which would have to wait for the garbage collector as well.
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

// absence waits until a VM is gone. It is an observer.
type absence struct{ uid types.UID }

func (a absence) look(vm *vmv1alpha1.VirtualMachine) (bool, error) {
	return vm == nil || vm.UID != a.uid, nil
}

func (a absence) tick() <-chan time.Time { return nil }

func (a absence) ticked() {}
