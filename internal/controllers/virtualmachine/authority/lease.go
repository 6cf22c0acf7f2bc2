package authority

import (
	"cmp"
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/migration"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/vm/lease"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// DurationOf returns the duration of the next lease of a VM.
func DurationOf(vm *v1alpha1.VirtualMachine) time.Duration {
	return time.Duration(cmp.Or(vm.Spec.LeaseDurationSeconds, int32(lease.DefaultDuration/time.Second))) * time.Second
}

// RecordOf converts a lease in the status.
func RecordOf(of *v1alpha1.VirtualMachineLease) lease.Record {
	return lease.Record{
		State: lease.State(of.State), Transitions: of.Transitions, Duration: time.Duration(of.DurationSeconds) * time.Second,
	}
}

// nextLease returns the lease for the next holder of a VM; nil if the VM relies on storage locking.
func nextLease(vm *v1alpha1.VirtualMachine, now time.Time) *v1alpha1.VirtualMachineLease {
	if vm.Spec.LeaseMode != v1alpha1.LeaseFullLeases {
		return nil
	}
	return leaseAfter(&vm.Status, DurationOf(vm), now)
}

// leaseAfter returns the lease that follows the one in a status, which may have none.
func leaseAfter(status *v1alpha1.VirtualMachineStatus, duration time.Duration, now time.Time) *v1alpha1.VirtualMachineLease {
	next := &v1alpha1.VirtualMachineLease{
		State: v1alpha1.LeaseOpen, DurationSeconds: int32(duration / time.Second),
		FencingToken: nextToken(status, now), TransitionTime: metav1.NewTime(now),
	}
	if status.Lease != nil {
		next.Transitions = status.Lease.Transitions + 1
	}
	return next
}

// passLease passes the lease, if there is one, to the process that has become authoritative by a switchover. The next
// lease is open and has a new token. The last lease need not expire first, because its holder has stopped its guest.
func passLease(status *v1alpha1.VirtualMachineStatus, now time.Time) {
	last, moved := status.Lease, status.Migration
	if last == nil {
		return
	}
	next := leaseAfter(status, RecordOf(last).Duration, now)
	if moved != nil && moved.TargetPodName == status.ActivePodName && moved.TargetFencingToken > last.FencingToken {
		next.FencingToken = moved.TargetFencingToken // the target has attached the disks with this token
	}
	status.Lease = next
}

// Elect makes the hypervisor in a Pod authoritative for a VM without authority. The lease mode is that with which the
// hypervisor was started.
func (r *Registry) Elect(ctx context.Context, vm *v1alpha1.VirtualMachine, pod *corev1.Pod) error {
	duration, err := podspec.LeaseOf(pod)
	if err != nil {
		return err
	}
	var lease *v1alpha1.VirtualMachineLease
	if duration > 0 {
		lease = leaseAfter(&vm.Status, duration, r.Clock.Now())
	}
	return r.swap(ctx, vm, v1alpha1.VirtualMachineAuthority{
		ActivePodName: pod.Name, ActivePodUID: pod.UID, VolumeClaimName: podspec.ClaimName(pod),
	}, lease, podspec.DataClaims(pod))
}

// ChangeLease stores another state of a VM's lease if the VM has not changed since vm was read; otherwise it returns
// a conflict. On success, vm is updated.
func (r *Registry) ChangeLease(ctx context.Context, vm *v1alpha1.VirtualMachine, state lease.State) error {
	return r.changeLease(ctx, r.Client, vm, state)
}

func (r *Registry) changeLease(ctx context.Context, writer client.Client, vm *v1alpha1.VirtualMachine, state lease.State) error {
	return compareAndSwap(ctx, writer, vm, func(status *v1alpha1.VirtualMachineStatus) {
		next := RecordOf(status.Lease).Next(state)
		status.Lease.State, status.Lease.Transitions = v1alpha1.LeaseState(next.State), next.Transitions
		status.Lease.TransitionTime = metav1.NewTime(r.Clock.Now())
	})
}

// renew fills in the response to the holder of a lease. A first request is decided with the VM from the API server.
// Later updates may use the VM from the cache, because they do not renew the lease.
func (r *Registry) renew(ctx context.Context, writer client.Client, vm *v1alpha1.VirtualMachine, live bool, update *vmpb.RunLeaseUpdate) (bool, error) {
	verdict, access := RecordOf(vm.Status.Lease).Ask(), AccessOf(vm)
	if access == AccessRevoked {
		verdict = lease.Refuse // the guest has lost its disks
	}
	switch {
	case verdict == lease.Refuse && live:
		update.Status = vmpb.RunLeaseUpdate_STATUS_TERMINATE
		return true, nil
	case verdict == lease.Refuse:
		return false, nil
	case verdict == lease.Reopen && live:
		return false, r.changeLease(ctx, writer, vm, lease.Open)
	}
	update.Status, update.Paused = vmpb.RunLeaseUpdate_STATUS_OK, vm.Spec.Mode == v1alpha1.ModePause
	update.Migrate, update.Grow = migration.OrderOf(vm).Given, growth(vm)
	update.FencingToken = uint64(vm.Status.Lease.FencingToken)
	if access != AccessAwaited { // otherwise it gets no lease yet, like a migration target before the switchover
		update.ValidFor = durationpb.New(RecordOf(vm.Status.Lease).Duration)
	}
	return true, nil
}

// Release records that the guest of the lease's holder has terminated for good. It returns ErrNotAuthoritative if the
// process is not the holder.
func (r *Registry) Release(ctx context.Context, us *vmpb.HypervisorID) error {
	return r.evaluate(ctx, us, true, func(vm *v1alpha1.VirtualMachine, _ bool) (bool, error) {
		if vm == nil || !Holds(vm, us) || vm.Status.Lease == nil {
			return true, ErrNotAuthoritative
		}
		if RecordOf(vm.Status.Lease).State == lease.Released {
			return true, nil
		}
		return false, r.ChangeLease(ctx, vm, lease.Released)
	})
}
