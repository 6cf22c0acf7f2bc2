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

// condition is what a call waits for.
type condition interface {
	// observe gets a state of the VM, nil if it is gone, and reports whether the wait is
	// over.
	observe(vm *vmv1alpha1.VirtualMachine) (done bool, err error)
	// expiry returns the channel of a timer after which the same state is observed again.
	// Nil means never.
	expiry() <-chan time.Time
	// expired is called when that timer has fired, before observe.
	expired()
}

// rewatchDelay is the time between a watch that ended and the next one.
const rewatchDelay = time.Second

// follow waits for a condition, from the given state of the VM on. It returns the last
// state.
func (c call) follow(ctx context.Context, vm *vmv1alpha1.VirtualMachine, cond condition) (*vmv1alpha1.VirtualMachine, error) {
	for {
		if done, err := cond.observe(vm); done || err != nil || vm == nil {
			return vm, err
		}
		last, done, err := c.watch(ctx, vm, cond)
		if done || err != nil {
			return last, err
		}
		if err := sleep(ctx, rewatchDelay); err != nil {
			return last, err
		}
		if vm, err = c.get(ctx); err != nil {
			return last, err
		}
	}
}

// watch waits for a condition until the watch ends, which is no error: servers end watches
// at any time.
func (c call) watch(ctx context.Context, vm *vmv1alpha1.VirtualMachine, cond condition) (last *vmv1alpha1.VirtualMachine, done bool, err error) {
	changes, err := c.changes(ctx, vm)
	if err != nil {
		return vm, false, unlessTooOld(err)
	}
	defer changes.Stop()
	for !done && err == nil {
		select {
		case event, open := <-changes.ResultChan():
			if !open {
				return vm, false, ctx.Err()
			}
			next, ok := event.Object.(*vmv1alpha1.VirtualMachine)
			if !ok {
				return vm, false, nil // an error; if it lasts, the next read meets it too
			}
			vm = next
			if event.Type == watch.Deleted {
				next = nil
			}
			done, err = cond.observe(next)
		case <-cond.expiry():
			cond.expired()
			done, err = cond.observe(vm)
		case <-ctx.Done():
			return vm, false, ctx.Err()
		}
	}
	return vm, done, err
}

// changes watches a VM from a resource version on.
func (c call) changes(ctx context.Context, since *vmv1alpha1.VirtualMachine) (watch.Interface, error) {
	return c.cluster.Watch(ctx, &vmv1alpha1.VirtualMachineList{}, client.InNamespace(since.Namespace),
		client.MatchingFields{metav1.ObjectNameField: since.Name},
		&client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: since.ResourceVersion}})
}

// unlessTooOld drops the error that a resource version is too old to watch from.
func unlessTooOld(err error) error {
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return nil
	}
	return err
}

func sleep(ctx context.Context, duration time.Duration) error {
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
