// Package authority decides which hypervisor process may run a VM.
//
// The decision is a group of fields of the VM's status (VirtualMachineAuthority). They
// change only together, and only by a compare-and-swap under the resource version at
// which they were read. So of several processes that want a VM at the same time, one
// gets it.
package authority

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podstate"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

var (
	// ErrNotAuthoritative means that the process in question may not run the VM.
	ErrNotAuthoritative = errors.New("the process is not authoritative")
	// ErrPodEnded means that the caller's Pod has ended or is not one of the VM's.
	ErrPodEnded = errors.New("the caller's pod has ended, or is not of this virtual machine")
	// ErrBusy means that the VM's object changed too often during the call.
	ErrBusy = errors.New("the virtual machine's object changes too often")
)

// ReasonCreating is the reason of the condition Ready after the authority moved to a Pod
// that has not reported yet.
const ReasonCreating = "Creating"

// maxTries limits how often one call evaluates a compare-and-swap.
const maxTries = 8

// Registry reads and changes the authority of VMs. All fields are required.
type Registry struct {
	// Client reads from the cache and writes. A yes of the cache is believed; anything
	// else is confirmed by the API server.
	Client client.Client
	// APIReader reads from the API server.
	APIReader client.Reader
	// Clock dates conditions.
	Clock clock.PassiveClock
}

// Lease returns the answer to a process that wants to go on running its VM. live skips
// the cache, which may be older than what the process was told before. STATUS_UNKNOWN
// means that nobody is authoritative and that the caller's Pod may be elected.
func (r *Registry) Lease(ctx context.Context, us *vmpb.HypervisorID, live bool) (*vmpb.RunLeaseUpdate, error) {
	var from client.Reader = r.Client
	if live {
		from = r.APIReader
	}
	for range maxTries {
		vm, err := read(ctx, from, keyOf(us))
		if err != nil {
			return nil, err
		}
		found := authorize(vm, us)
		if found == granted {
			return &vmpb.RunLeaseUpdate{Status: vmpb.RunLeaseUpdate_STATUS_OK, Paused: vm.Spec.Mode == v1alpha1.ModePause}, nil
		}
		if from != r.APIReader {
			from = r.APIReader
			continue
		}
		switch found {
		case denied:
			return &vmpb.RunLeaseUpdate{Status: vmpb.RunLeaseUpdate_STATUS_TERMINATE}, nil
		case undecided:
			return r.candidacy(ctx, vm, us)
		}
		next := vm.Status.VirtualMachineAuthority
		next.ActiveRunID = runID(us)
		if err := retriable(r.Swap(ctx, vm, next)); err != nil {
			return nil, err
		}
	}
	return nil, ErrBusy
}

// candidacy answers while nobody is authoritative: a Pod of the VM may be elected, any
// other has to end.
func (r *Registry) candidacy(ctx context.Context, vm *v1alpha1.VirtualMachine, us *vmpb.HypervisorID) (*vmpb.RunLeaseUpdate, error) {
	_, err := r.pod(ctx, vm, us.GetPodName())
	switch {
	case errors.Is(err, ErrPodEnded):
		return &vmpb.RunLeaseUpdate{Status: vmpb.RunLeaseUpdate_STATUS_TERMINATE}, nil
	case err != nil:
		return nil, err
	}
	return &vmpb.RunLeaseUpdate{Status: vmpb.RunLeaseUpdate_STATUS_UNKNOWN}, nil
}

// Confirm returns nil if a process is authoritative, and ErrNotAuthoritative if it is
// not. imagePrepared is stored before Confirm returns.
func (r *Registry) Confirm(ctx context.Context, us *vmpb.HypervisorID, imagePrepared bool) error {
	var from client.Reader = r.Client
	for range maxTries {
		vm, err := read(ctx, from, keyOf(us))
		if err != nil {
			return err
		}
		holds := vm != nil && Holds(vm, us)
		if holds && (!imagePrepared || vm.Status.ImagePrepared) {
			return nil
		}
		if from != r.APIReader {
			from = r.APIReader
			continue
		}
		if !holds {
			return ErrNotAuthoritative
		}
		err = r.compareAndSwap(ctx, vm, func(status *v1alpha1.VirtualMachineStatus) { status.ImagePrepared = true })
		if err := retriable(err); err != nil {
			return err
		}
	}
	return ErrBusy
}

// ConfirmLive is Confirm by what the API server says, whatever the cache shows.
func (r *Registry) ConfirmLive(ctx context.Context, us *vmpb.HypervisorID) error {
	vm, err := read(ctx, r.APIReader, keyOf(us))
	if err == nil && (vm == nil || !Holds(vm, us)) {
		return ErrNotAuthoritative
	}
	return err
}

// SwitchOver gives a VM to the process us if the process them has it. If us has it
// already, an earlier answer was lost and SwitchOver returns nil. Otherwise it returns
// ErrNotAuthoritative, or ErrPodEnded if us cannot run the VM.
func (r *Registry) SwitchOver(ctx context.Context, us, them *vmpb.HypervisorID) error {
	for range maxTries {
		vm, err := read(ctx, r.APIReader, keyOf(us))
		if err != nil {
			return err
		}
		switch {
		case vm != nil && Holds(vm, us):
			return nil
		case vm == nil || !vm.DeletionTimestamp.IsZero() || !Holds(vm, them):
			return ErrNotAuthoritative
		}
		pod, err := r.pod(ctx, vm, us.GetPodName())
		if err != nil {
			return err
		}
		// A conflict does not tell who won; the next read does.
		err = r.Swap(ctx, vm, v1alpha1.VirtualMachineAuthority{
			ActivePodName: pod.Name, ActivePodUID: pod.UID, ActiveRunID: runID(us), VolumeClaimName: podspec.ClaimName(pod),
		})
		if err := retriable(err); err != nil {
			return err
		}
	}
	return ErrBusy
}

// retriable drops the errors after which the object has to be read again.
func retriable(err error) error {
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// pod returns a Pod of the VM that has not ended, or ErrPodEnded.
func (r *Registry) pod(ctx context.Context, vm *v1alpha1.VirtualMachine, name string) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	err := r.APIReader.Get(ctx, client.ObjectKey{Namespace: vm.Namespace, Name: name}, pod)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading pod %s: %w", name, err)
	}
	if err != nil || !podstate.Owns(vm, pod) || podstate.Finished(pod) {
		return nil, ErrPodEnded
	}
	return pod, nil
}

// Swap stores another authority, if nobody wrote the VM since vm was read; otherwise it
// returns a conflict, and nothing changed. On success vm is updated to what is stored.
func (r *Registry) Swap(ctx context.Context, vm *v1alpha1.VirtualMachine, next v1alpha1.VirtualMachineAuthority) error {
	return r.compareAndSwap(ctx, vm, func(status *v1alpha1.VirtualMachineStatus) {
		has := status.VirtualMachineAuthority
		status.VirtualMachineAuthority = next
		if has.ActivePodName == next.ActivePodName {
			return
		}
		reserved := next.ActivePodUID == ""
		if reserved && (next.VolumeClaimName == "" || next.VolumeClaimName != has.VolumeClaimName) {
			status.ImagePrepared = false // another disk, and an empty one
		}
		// The condition described another Pod.
		meta.SetStatusCondition(&status.Conditions, metav1.Condition{
			Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: ReasonCreating,
			Message: fmt.Sprintf("Creating pod %s.", next.ActivePodName), LastTransitionTime: metav1.NewTime(r.Clock.Now()),
			ObservedGeneration: vm.Generation,
		})
	})
}

func (r *Registry) compareAndSwap(ctx context.Context, vm *v1alpha1.VirtualMachine, change func(*v1alpha1.VirtualMachineStatus)) error {
	next := vm.DeepCopy()
	change(&next.Status)
	err := r.Client.Status().Patch(ctx, next, client.MergeFromWithOptions(vm.DeepCopy(), client.MergeFromWithOptimisticLock{}))
	if err != nil {
		return fmt.Errorf("writing the status of virtual machine %s: %w", vm.Name, err)
	}
	*vm = *next
	return nil
}

// read returns a VM, or nil if it does not exist.
func read(ctx context.Context, from client.Reader, key types.NamespacedName) (*v1alpha1.VirtualMachine, error) {
	vm := &v1alpha1.VirtualMachine{}
	err := from.Get(ctx, key, vm)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading virtual machine %s: %w", key, err)
	}
	return vm, nil
}

func keyOf(id *vmpb.HypervisorID) types.NamespacedName {
	return types.NamespacedName{Namespace: id.GetNamespace(), Name: id.GetVmName()}
}
