package machineset

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
)

// errOwner marks failures to adopt or release Machines.
var errOwner = errors.New("adopting and releasing machines")

// changeOwners adopts and releases Machines, and stops at the first failure.
func (c *Controller) changeOwners(ctx context.Context, f *facts, operations []operation) error {
	alive := false
	for _, op := range operations {
		var err error
		switch op.action {
		case adopt:
			if !alive {
				if err := c.checkAlive(ctx, f.set); err != nil {
					return err
				}
				alive = true
			}
			err = c.setOwner(ctx, f, op)
		case release:
			err = c.dropOwner(ctx, f.set, op)
		default:
		}
		if err != nil {
			return fmt.Errorf("%w: %w", errOwner, err)
		}
	}
	return nil
}

// checkAlive asks the API server whether the set still exists. To adopt on behalf of one
// that is gone would have the garbage collector delete the Machine.
func (c *Controller) checkAlive(ctx context.Context, set *v1alpha1.MachineSet) error {
	live := &metav1.PartialObjectMetadata{}
	live.SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind("MachineSet"))
	err := c.Live.Get(ctx, client.ObjectKeyFromObject(set), live)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reading machine set %s: %w", set.Name, err)
	}
	if err != nil || live.UID != set.UID || !live.DeletionTimestamp.IsZero() {
		resource := v1alpha1.SchemeGroupVersion.WithResource("machinesets").GroupResource()
		return apierrors.NewConflict(resource, set.Name, errors.New("it is being deleted"))
	}
	return nil
}

func (c *Controller) setOwner(ctx context.Context, f *facts, op operation) error {
	version, err := c.patchMachine(ctx, op.machine, func(machine *v1alpha1.Machine) {
		machine.OwnerReferences = append(machine.OwnerReferences, ownerReference(f.set))
	})
	if err == nil {
		f.note(op.machine, version)
		c.say(ctx, f.set, "Adopted", "Adopted", []string{op.machine.Name}, "", op.reason)
	}
	return err
}

func (c *Controller) dropOwner(ctx context.Context, set *v1alpha1.MachineSet, op operation) error {
	_, err := c.patchMachine(ctx, op.machine, func(machine *v1alpha1.Machine) {
		machine.OwnerReferences = slices.DeleteFunc(machine.OwnerReferences, func(owner metav1.OwnerReference) bool {
			return owner.UID == set.UID
		})
	})
	if err == nil {
		c.say(ctx, set, "Released", "Released", []string{op.machine.Name}, "", op.reason)
	}
	return err
}

// errUpdate marks failures to update Machines.
var errUpdate = errors.New("updating machines")

// update has Machines take over what changed in the template.
func (c *Controller) update(ctx context.Context, f *facts, operations []operation) error {
	failures := make([]error, len(operations))
	versions := make([]string, len(operations))
	var group errgroup.Group
	group.SetLimit(parallel)
	for i, op := range operations {
		group.Go(func() error {
			version, err := c.patchMachine(ctx, op.machine, func(machine *v1alpha1.Machine) {
				inherit(&f.set.Spec.Template.Spec, &machine.Spec)
			})
			switch {
			case err == nil:
				versions[i] = version
			case !expectations.Conflict(err): // else it is tried again when the cache shows who was first
				failures[i] = fmt.Errorf("%w: %w", errUpdate, err)
			}
			return nil // a failure does not cut off the others
		})
	}
	_ = group.Wait() // never fails
	var done []operation
	for i, op := range operations {
		if versions[i] != "" {
			done = append(done, op)
			f.note(op.machine, versions[i])
		}
	}
	c.sayEach(ctx, f.set, "SuccessfulUpdate", "Updated", done)
	return cmp.Or(failures...)
}

// patchMachine returns the Machine's new version: the old one if the Machine is gone.
func (c *Controller) patchMachine(ctx context.Context, machine *v1alpha1.Machine, change func(*v1alpha1.Machine)) (string, error) {
	changed := machine.DeepCopy()
	change(changed)
	if err := c.Client.Patch(ctx, changed, expectations.Locked(machine)); err != nil && !expectations.Gone(err) {
		return "", fmt.Errorf("changing machine %s: %w", machine.Name, err)
	}
	return changed.ResourceVersion, nil
}
