// Package authority decides which hypervisor process may run a VM.
//
// The decision is a group of fields in the status of the VM (VirtualMachineAuthority). These fields change only
// together, and only if the object still has the resource version at which it was read. If several processes write at
// the same time, only one of them gets the VM.
package authority

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/migration"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podstate"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

var (
	// ErrNotAuthoritative means that a process must not run the VM.
	ErrNotAuthoritative = errors.New("the process is not authoritative")
	// ErrPodEnded means that the caller's Pod has terminated or does not belong to the VM.
	ErrPodEnded = errors.New("the caller's pod has terminated or does not belong to this virtual machine")
	// ErrEarlierRun means that a process requested the authority of a process that started later in the same Pod. The
	// later process would take the authority back with its next request for a lease.
	ErrEarlierRun = errors.New("the authoritative process of this pod has a higher run ID")
	// ErrBusy means that the VM object changed too often during the call.
	ErrBusy = errors.New("the virtual machine changes too often")
)

// ReasonCreating is the reason of the condition Ready after the authority has moved to a Pod that has not reported
// yet.
const ReasonCreating = "Creating"

// maxTries limits how often one call reads a VM.
const maxTries = 8

// Registry reads and changes the authority of VMs. All fields are required unless their comments describe a default.
type Registry struct {
	// Client reads from the cache, and writes. Before a request is refused, the VM is also read from the API server.
	Client client.Client
	// APIReader reads from the API server.
	APIReader client.Reader
	// RenewalClient reads from the API server and writes, for renewals of leases only. Nothing else may use it. See
	// RenewalRequests for its capacity. If nil, APIReader and Client are used.
	RenewalClient client.Client
	// Renewals is the maximum of lease renewals per second that VMs may need together. A VM that exceeds it is not
	// started. 0 means DefaultRenewals.
	Renewals float64
	// Foreign reports whether a VM belongs to another controller, which renews its lease. If nil, none does.
	Foreign func(*v1alpha1.VirtualMachine) bool
	// Clock returns the time for conditions and leases.
	Clock clock.PassiveClock
	// MigrationsPerHost limits concurrent migrations per host. 0, the default, means no limit.
	MigrationsPerHost int
	// Migration configures live migrations. The zero value selects the defaults.
	Migration podspec.Migration

	slots               slots
	locks, renewalLocks keyedLocks
	renewals            renewals
}

// evaluate calls a function with a VM until the function is done. The first call gets the VM from the cache, unless
// live is set; all others get it from the API server, with APIReader. The VM is nil if it does not exist. If the function returns a
// conflict, because another process wrote first, it is called again. evaluate returns ErrBusy after too many
// attempts.
func (r *Registry) evaluate(
	ctx context.Context, us *vmpb.HypervisorID, live bool, evaluate func(vm *v1alpha1.VirtualMachine, live bool) (done bool, err error),
) error {
	return r.evaluateFrom(ctx, r.common(), us, live, evaluate)
}

// evaluateFrom is like evaluate with another way to the API server.
func (r *Registry) evaluateFrom(
	ctx context.Context, server server, us *vmpb.HypervisorID, live bool, evaluate func(vm *v1alpha1.VirtualMachine, live bool) (done bool, err error),
) error {
	for range maxTries {
		done, err := r.evaluateOnce(ctx, server, us, live, evaluate)
		if done || err != nil {
			return err
		}
		live = true
	}
	return ErrBusy
}

func (r *Registry) evaluateOnce(
	ctx context.Context, server server, us *vmpb.HypervisorID, live bool, evaluate func(vm *v1alpha1.VirtualMachine, live bool) (done bool, err error),
) (done bool, err error) {
	var from client.Reader = r.Client
	if live {
		from = server
		release, err := server.locks.acquire(ctx, KeyOf(us))
		if err != nil {
			return false, err
		}
		defer release()
	}
	vm, err := read(ctx, from, KeyOf(us))
	if err != nil {
		return false, err
	}
	done, err = evaluate(vm, live)
	if apierror.Conflict(err) || apierror.Gone(err) {
		err = nil
	}
	return done, err
}

// Lease returns the response to a process that requests to run its VM. If live is set, it does not use the cache,
// which may be older than the last response to the process. STATUS_UNKNOWN means that no process is authoritative and
// that the caller's Pod may be elected.
func (r *Registry) Lease(ctx context.Context, us *vmpb.HypervisorID, live bool) (*vmpb.RunLeaseUpdate, error) {
	update, server := &vmpb.RunLeaseUpdate{}, r.common()
	if live {
		server = r.serverFor(ctx, us)
	}
	err := r.evaluateFrom(ctx, server, us, live, func(vm *v1alpha1.VirtualMachine, live bool) (bool, error) {
		switch found := r.authorize(vm, us); {
		case found == granted && vm.Status.Lease != nil:
			return r.renew(ctx, server.writer, vm, live, update)
		case found == granted || found == awaited:
			update.Status, update.Paused = vmpb.RunLeaseUpdate_STATUS_OK, vm.Spec.Mode == v1alpha1.ModePause
			update.Migrate = found == granted && migration.OrderOf(vm).Given
			if found == granted {
				update.Grow = growth(vm)
			} else {
				update.FencingToken = uint64(vm.Status.Migration.TargetFencingToken)
			}
			return true, nil
		case !live:
			return false, nil
		case found == denied:
			update.Status = vmpb.RunLeaseUpdate_STATUS_TERMINATE
			return true, nil
		case found == undecided: // a Pod of the VM may be elected
			_, err := r.pod(ctx, vm, us.GetPodName())
			if errors.Is(err, ErrPodEnded) {
				update.Status, err = vmpb.RunLeaseUpdate_STATUS_TERMINATE, nil
			}
			return true, err
		}
		next := vm.Status.VirtualMachineAuthority
		next.ActiveRunID = runID(us)
		return false, r.Swap(ctx, vm, next)
	})
	if err != nil {
		return nil, err
	}
	return update, nil
}

// growth returns the disks to enlarge, with their sizes.
func growth(vm *v1alpha1.VirtualMachine) []*vmpb.DiskSize {
	var sizes []*vmpb.DiskSize
	for _, disk := range vm.Status.GrowDisks {
		sizes = append(sizes, &vmpb.DiskSize{Name: disk.Name, Bytes: uint64(max(0, disk.Bytes))})
	}
	return sizes
}

// Confirm returns nil if a process is authoritative, and ErrNotAuthoritative if it is not. Before it returns nil, it
// stores which disks are complete according to the report, except for a root disk without an initial image.
func (r *Registry) Confirm(ctx context.Context, us *vmpb.HypervisorID, report *vmpb.ReportStateRequest) error {
	return r.evaluate(ctx, us, false, func(vm *v1alpha1.VirtualMachine, live bool) (bool, error) {
		holds := vm != nil && Holds(vm, us)
		switch {
		case holds && (!report.GetImagePrepared() || vm.Status.ImagePrepared || vm.Spec.InitialImage == nil) && !podspec.NewDataDisks(vm, report):
			return true, nil
		case !live:
			return false, nil
		case !holds:
			return true, ErrNotAuthoritative
		}
		return false, r.compareAndSwap(ctx, vm, func(status *v1alpha1.VirtualMachineStatus) {
			status.ImagePrepared = status.ImagePrepared || report.GetImagePrepared() && vm.Spec.InitialImage != nil
			podspec.RecordDataDisks(&vm.Spec, status, report)
		})
	})
}

// ConfirmNext returns nil if MayFollow is true for the VM in the cache, and ErrNotAuthoritative otherwise.
func (r *Registry) ConfirmNext(ctx context.Context, us *vmpb.HypervisorID) error {
	vm, err := read(ctx, r.Client, KeyOf(us))
	if err == nil && !MayFollow(vm, us) {
		return ErrNotAuthoritative
	}
	return err
}

// MayFollow reports whether a process is authoritative, or may succeed the authoritative process in its Pod. vm is
// nil if it does not exist.
func MayFollow(vm *v1alpha1.VirtualMachine, who *vmpb.HypervisorID) bool {
	found := authorize(vm, who)
	return found == granted || found == adoptable
}

// SwitchOver moves the authority, together with the lease in any state, from the process them to the process us. The
// process us must be in the same Pod or in the Pod of the migration target. The process them has stopped its guest,
// and continues it only if it switches back. If us is already authoritative, because an earlier response was lost,
// SwitchOver returns nil.
//
// It returns ErrNotAuthoritative, ErrEarlierRun if them is a later process in the Pod of us, or ErrPodEnded if us
// cannot run the VM.
func (r *Registry) SwitchOver(ctx context.Context, us, them *vmpb.HypervisorID) error {
	return r.evaluate(ctx, us, true, func(vm *v1alpha1.VirtualMachine, _ bool) (bool, error) {
		switch {
		case vm != nil && Holds(vm, us):
			return true, nil
		case vm == nil || !vm.DeletionTimestamp.IsZero() || !Holds(vm, them):
			return true, ErrNotAuthoritative
		}
		if err := mayFollow(vm, us, them); err != nil {
			return true, err
		}
		pod, err := r.pod(ctx, vm, us.GetPodName())
		if err != nil {
			return true, err
		}
		claim := podspec.ClaimName(pod)
		if podspec.Served(vm) {
			claim = vm.Status.VolumeClaimName // the disk server mounts it
		}
		return false, r.compareAndSwap(ctx, vm, func(status *v1alpha1.VirtualMachineStatus) {
			migration.Move(status, v1alpha1.VirtualMachineAuthority{
				ActivePodName: pod.Name, ActivePodUID: pod.UID, ActiveRunID: runID(us), VolumeClaimName: claim,
			}, r.Clock.Now())
			migration.Mount(status, podspec.DataClaims(pod))
			passLease(status, r.Clock.Now())
		})
	})
}

// mayFollow returns why the process us must not take over the VM from the process them, or nil if it may.
func mayFollow(vm *v1alpha1.VirtualMachine, us, them *vmpb.HypervisorID) error {
	last := vm.Status.Migration
	switch {
	case us.GetPodName() != them.GetPodName() && !migration.IsTarget(&vm.Status, us.GetPodName()):
		return ErrNotAuthoritative // the migration is not running any more
	case us.GetPodName() != them.GetPodName():
		return nil
	case us.GetRunId() < them.GetRunId():
		return ErrEarlierRun
	case vm.Status.Lease != nil && (last == nil || last.SourcePodName != us.GetPodName()):
		return ErrNotAuthoritative // another process must wait until the lease has expired
	}
	return nil
}

// pod returns a Pod of the VM that has not terminated, or ErrPodEnded.
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

// Update changes the status of a VM if the VM has not changed since vm was read; otherwise it returns a conflict and
// changes nothing. On success, vm is updated to the stored object. Use Swap to change the authority.
func (r *Registry) Update(ctx context.Context, vm *v1alpha1.VirtualMachine, change func(*v1alpha1.VirtualMachineStatus)) error {
	return r.compareAndSwap(ctx, vm, change)
}

// Swap stores another authority if the VM has not changed since vm was read; otherwise it returns a conflict and
// changes nothing. On success, vm is updated to the stored object.
func (r *Registry) Swap(ctx context.Context, vm *v1alpha1.VirtualMachine, next v1alpha1.VirtualMachineAuthority) error {
	return r.swap(ctx, vm, next, nextLease(vm, r.Clock.Now()), nil)
}

// swap implements Swap. It also stores the lease and the data disks if the VM gets another hypervisor.
func (r *Registry) swap(
	ctx context.Context, vm *v1alpha1.VirtualMachine, next v1alpha1.VirtualMachineAuthority, lease *v1alpha1.VirtualMachineLease,
	mounted []v1alpha1.DataDiskStatus,
) error {
	return r.compareAndSwap(ctx, vm, func(status *v1alpha1.VirtualMachineStatus) {
		has, migrates := status.VirtualMachineAuthority, migration.IsTarget(status, next.ActivePodName)
		migration.Move(status, next, r.Clock.Now())
		migration.Mount(status, mounted)
		if has.ActivePodName == next.ActivePodName || migrates {
			return // the guest keeps running
		}
		status.Lease = lease
		status.GrowDisks = nil
		// The disk server prepares served disks, regardless of the hypervisor.
		reserved := next.ActivePodUID == "" && !podspec.Served(vm)
		if reserved && (next.VolumeClaimName == "" || next.VolumeClaimName != has.VolumeClaimName || podspec.ReplacesDisk(vm)) {
			status.ImagePrepared = false // the new disk is empty
		}
		if reserved {
			status.DataDisks = podspec.NextDataDisks(vm)
		}
		// The condition still describes the previous Pod.
		meta.SetStatusCondition(&status.Conditions, metav1.Condition{
			Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: ReasonCreating,
			Message: fmt.Sprintf("Creating pod %s.", next.ActivePodName), LastTransitionTime: metav1.NewTime(r.Clock.Now()),
			ObservedGeneration: vm.Generation,
		})
	})
}

func (r *Registry) compareAndSwap(ctx context.Context, vm *v1alpha1.VirtualMachine, change func(*v1alpha1.VirtualMachineStatus)) error {
	return compareAndSwap(ctx, r.Client, vm, change)
}

func compareAndSwap(ctx context.Context, writer client.Client, vm *v1alpha1.VirtualMachine, change func(*v1alpha1.VirtualMachineStatus)) error {
	next := vm.DeepCopy()
	change(&next.Status)
	err := writer.Status().Patch(ctx, next, client.MergeFromWithOptions(vm.DeepCopy(), client.MergeFromWithOptimisticLock{}))
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

// KeyOf returns the namespace and name of the VM that a process runs.
func KeyOf(id *vmpb.HypervisorID) types.NamespacedName {
	return types.NamespacedName{Namespace: id.GetNamespace(), Name: id.GetVmName()}
}

// authorization is the permission of a process to run a VM.
type authorization int

const (
	// denied means that the process must not run the VM.
	denied authorization = iota
	// granted means that the process is authoritative.
	granted
	// adoptable means that the process is a new one in the authoritative Pod. It may replace the last process, which
	// has terminated or does not hold the lock of the disk.
	adoptable
	// undecided means that no process is authoritative yet.
	undecided
	// awaited means that the process is in the Pod of a migration target and must not run the VM yet.
	awaited
)

// authorize is like the function authorize, but the holder of a VM that is being deleted keeps its authorization for as
// long as its guest may take to shut down.
func (r *Registry) authorize(vm *v1alpha1.VirtualMachine, who *vmpb.HypervisorID) authorization {
	if vm != nil && !vm.DeletionTimestamp.IsZero() && Holds(vm, who) && r.Clock.Now().Before(ShutdownDeadline(vm)) {
		return granted
	}
	return authorize(vm, who)
}

// ShutdownDeadline returns until when the guest of a VM that is being deleted may run.
func ShutdownDeadline(vm *v1alpha1.VirtualMachine) time.Time {
	return vm.DeletionTimestamp.Add(podspec.GracePeriod(vm))
}

// authorize returns the authorization of a process. vm is nil if it does not exist.
func authorize(vm *v1alpha1.VirtualMachine, who *vmpb.HypervisorID) authorization {
	switch {
	case vm == nil || !vm.DeletionTimestamp.IsZero():
		return denied
	case vm.Status.ActivePodName == "":
		return undecided
	case vm.Status.ActivePodName != who.GetPodName():
		if migration.IsTarget(&vm.Status, who.GetPodName()) {
			return awaited
		}
		return denied
	case Holds(vm, who):
		return granted
	}
	if vm.Status.Lease != nil && vm.Status.ActiveRunID != "" {
		return denied // like another Pod, it must wait until the lease has expired
	}
	last, err := strconv.ParseUint(vm.Status.ActiveRunID, 10, 64)
	if vm.Status.ActiveRunID == "" || err == nil && last < who.GetRunId() {
		return adoptable
	}
	return denied
}

// Holds reports whether a process is the authoritative one.
func Holds(vm *v1alpha1.VirtualMachine, who *vmpb.HypervisorID) bool {
	return vm.Status.ActivePodName != "" && vm.Status.ActivePodName == who.GetPodName() &&
		vm.Status.ActiveRunID == runID(who)
}

// runID returns the run ID of a process in the form used in the status.
func runID(who *vmpb.HypervisorID) string { return strconv.FormatUint(who.GetRunId(), 10) }
