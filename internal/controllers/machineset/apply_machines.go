package machineset

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machineset/planner"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
)

// errOwner marks failures to adopt or release Machines.
var errOwner = errors.New("adopting and releasing machines")

// changeOwners adopts and releases Machines, and stops at the first failure.
func (c *Controller) changeOwners(ctx context.Context, f planner.Facts, operations []planner.Operation, done *outcome) error {
	if adoptions := only(operations, planner.Adopt); len(adoptions) > 0 {
		if err := c.checkAlive(ctx, f.Set); err != nil {
			return err
		}
	}
	for _, op := range operations {
		var err error
		switch op.Action {
		case planner.Adopt:
			done.changed[op.Machine.UID], err = c.setOwner(ctx, f.Set, op)
		case planner.Release:
			err = c.dropOwner(ctx, f.Set, op)
		default:
		}
		if err != nil {
			return fmt.Errorf("%w: %w", errOwner, err)
		}
	}
	return nil
}

// checkAlive returns a conflict if the API server does not have the set any more. The garbage
// collector would delete a Machine that is adopted for it.
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

// setOwner adopts a Machine, and returns its new version.
func (c *Controller) setOwner(ctx context.Context, set *v1alpha1.MachineSet, op planner.Operation) (string, error) {
	version, err := c.patchMachine(ctx, op.Machine, func(machine *v1alpha1.Machine) {
		machine.OwnerReferences = append(machine.OwnerReferences, ownerReference(set))
	})
	if err == nil {
		c.report(ctx, set, "Adopted", "Adopted", []string{op.Machine.Name}, op)
	}
	return version, err
}

func (c *Controller) dropOwner(ctx context.Context, set *v1alpha1.MachineSet, op planner.Operation) error {
	_, err := c.patchMachine(ctx, op.Machine, func(machine *v1alpha1.Machine) {
		machine.OwnerReferences = slices.DeleteFunc(machine.OwnerReferences, func(owner metav1.OwnerReference) bool {
			return owner.UID == set.UID
		})
	})
	if err == nil {
		c.report(ctx, set, "Released", "Released", []string{op.Machine.Name}, op)
	}
	return err
}

// errUpdate marks failures to update Machines.
var errUpdate = errors.New("updating machines")

// update brings changes of the template into Machines.
func (c *Controller) update(ctx context.Context, f planner.Facts, operations []planner.Operation, done *outcome) error {
	versions, failures := make([]string, len(operations)), make([]error, len(operations))
	each(len(operations), func(i int) {
		var err error
		versions[i], err = c.patchMachine(ctx, operations[i].Machine, func(machine *v1alpha1.Machine) {
			planner.TakeOver(&f.Set.Spec.Template.Spec, &machine.Spec)
		})
		if err != nil && !apierror.Conflict(err) { // else it is tried again when the cache shows who was first
			failures[i] = fmt.Errorf("%w: %w", errUpdate, err)
		}
	})
	var updated []planner.Operation
	for i, op := range operations {
		if versions[i] != "" {
			updated = append(updated, op)
			done.changed[op.Machine.UID] = versions[i]
		}
	}
	c.reportEach(ctx, f.Set, "SuccessfulUpdate", "Updated", updated)
	return cmp.Or(failures...)
}

// patchMachine changes a Machine and returns its new version, or the old one if it is gone.
func (c *Controller) patchMachine(ctx context.Context, machine *v1alpha1.Machine, change func(*v1alpha1.Machine)) (string, error) {
	changed := machine.DeepCopy()
	change(changed)
	if err := c.Client.Patch(ctx, changed, expectations.Locked(machine)); err != nil && !apierror.Gone(err) {
		return "", fmt.Errorf("changing machine %s: %w", machine.Name, err)
	}
	return changed.ResourceVersion, nil
}
