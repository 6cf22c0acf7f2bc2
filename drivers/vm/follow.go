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

// observer judges the states of a VM.
type observer interface {
	// look gets a state of the VM, nil if it is gone, and reports whether that is enough.
	look(vm *vmv1alpha1.VirtualMachine) (done bool, err error)
	// tick tells when to look again at the same state. Nil means never.
	tick() <-chan time.Time
	// ticked is called when that happened, before the look.
	ticked()
}

// pause is the time between a watch that broke off and the next one.
const pause = time.Second

// follow shows the states of a VM to an observer, beginning with the one that is given,
// until the observer has seen enough. It returns the last of them.
func (c call) follow(ctx context.Context, vm *vmv1alpha1.VirtualMachine, o observer) (*vmv1alpha1.VirtualMachine, error) {
	for {
		if done, err := o.look(vm); done || err != nil || vm == nil {
			return vm, err
		}
		last, done, err := c.watch(ctx, vm, o)
		if done || err != nil {
			return last, err
		}
		if err := sleep(ctx, pause); err != nil {
			return last, err
		}
		if vm, err = c.get(ctx); err != nil {
			return last, err
		}
	}
}

// watch shows changes until the observer has seen enough or the watch breaks off, which
// is no error: watches end when they please.
func (c call) watch(ctx context.Context, vm *vmv1alpha1.VirtualMachine, o observer) (last *vmv1alpha1.VirtualMachine, done bool, err error) {
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
			done, err = o.look(next)
		case <-o.tick():
			o.ticked()
			done, err = o.look(vm)
		case <-ctx.Done():
			return vm, false, ctx.Err()
		}
	}
	return vm, done, err
}

// changes are those of a VM since a version of it.
func (c call) changes(ctx context.Context, since *vmv1alpha1.VirtualMachine) (watch.Interface, error) {
	return c.cluster.Watch(ctx, &vmv1alpha1.VirtualMachineList{}, client.InNamespace(since.Namespace),
		client.MatchingFields{metav1.ObjectNameField: since.Name},
		&client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: since.ResourceVersion}})
}

// unlessTooOld drops the error which says that the server has forgotten the version from
// which to watch.
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
