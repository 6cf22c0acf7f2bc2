package virtualmachine

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/vm/identity"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// service answers hypervisors.
type service struct {
	vmpb.UnimplementedVMControllerServer
	*Controller
}

// caller checks who calls: the identity must be complete, and be that of the caller's
// certificate.
func caller(ctx context.Context, us *vmpb.HypervisorID) (types.NamespacedName, error) {
	key := keyOf(us)
	if err := complete(us); err != nil {
		return key, err
	}
	return key, identity.RequireVM(ctx, us.GetNamespace(), us.GetVmName(), us.GetPodName())
}

func complete(id *vmpb.HypervisorID) error {
	if id.GetVmName() == "" || id.GetNamespace() == "" || id.GetPodName() == "" || id.GetRunId() == 0 {
		return status.Error(codes.InvalidArgument, "a hypervisor's identity is not complete")
	}
	return nil
}

func keyOf(id *vmpb.HypervisorID) types.NamespacedName {
	return types.NamespacedName{Namespace: id.GetNamespace(), Name: id.GetVmName()}
}

// read gets a VM; nil if there is none.
func read(ctx context.Context, from client.Reader, key types.NamespacedName) (*v1alpha1.VirtualMachine, error) {
	vm := &v1alpha1.VirtualMachine{}
	err := from.Get(ctx, key, vm)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, unavailable(ctx, err)
	}
	return vm, nil
}

// unavailable hides what the API server said from the caller, who can only try again.
func unavailable(ctx context.Context, err error) error {
	log.FromContext(ctx).Error(err, "answering a hypervisor")
	return status.Error(codes.Unavailable, "the virtual machine's object cannot be read or written now")
}

// RunLease implements VMController.
func (s *service) RunLease(request *vmpb.RunLeaseRequest, out grpc.ServerStreamingServer[vmpb.RunLeaseUpdate]) error {
	ctx, us := out.Context(), request.GetUs()
	key, err := caller(ctx, us)
	if err != nil {
		return err
	}
	stream := s.streams.add(key, us.GetPodName())
	defer s.streams.remove(key, stream)
	// The cache may be behind what the caller was told before.
	source := s.APIReader
	var last *vmpb.RunLeaseUpdate
	for {
		update, err := s.authorization(ctx, source, us)
		if err != nil {
			return err
		}
		if last == nil || last.GetStatus() != update.GetStatus() || last.GetPaused() != update.GetPaused() {
			if err := out.Send(update); err != nil {
				return err
			}
			last = update
		}
		source = s.Client
		select {
		case <-stream.woken:
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

// swapTries bounds how often a compare-and-swap is evaluated anew within one call.
const swapTries = 8

// authorization is the answer to "may I keep running this VM?". A cache may say yes;
// anything else is found out from the API server.
func (s *service) authorization(ctx context.Context, from client.Reader, us *vmpb.HypervisorID) (*vmpb.RunLeaseUpdate, error) {
	key := keyOf(us)
	for range swapTries {
		vm, err := read(ctx, from, key)
		if err != nil {
			return nil, err
		}
		found := judge(vm, us)
		if found == verdictOK {
			return &vmpb.RunLeaseUpdate{Status: vmpb.RunLeaseUpdate_STATUS_OK, Paused: vm.Spec.Mode == v1alpha1.ModePause}, nil
		}
		if from != s.APIReader {
			from = s.APIReader
			continue
		}
		switch found {
		case verdictTerminate:
			return &vmpb.RunLeaseUpdate{Status: vmpb.RunLeaseUpdate_STATUS_TERMINATE}, nil
		case verdictNone:
			return s.unelected(ctx, vm, us)
		}
		err = s.adopt(ctx, vm, us)
		if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return nil, unavailable(ctx, err)
		}
	}
	return nil, status.Error(codes.Unavailable, "the virtual machine's object changes too often")
}

// adopt makes a new process in the authoritative Pod the authoritative one.
func (s *service) adopt(ctx context.Context, vm *v1alpha1.VirtualMachine, us *vmpb.HypervisorID) error {
	next := vm.Status.VirtualMachineAuthority
	next.ActiveRunID = runID(us)
	return s.swapAuthority(ctx, vm, next)
}

// unelected answers while nobody is authoritative. A Pod of the VM may be elected, so it
// is told nothing, which changes nothing; any other must go.
func (s *service) unelected(ctx context.Context, vm *v1alpha1.VirtualMachine, us *vmpb.HypervisorID) (*vmpb.RunLeaseUpdate, error) {
	pod, err := s.podOf(ctx, vm, us.GetPodName())
	if err != nil {
		return nil, err
	}
	if pod == nil {
		return &vmpb.RunLeaseUpdate{Status: vmpb.RunLeaseUpdate_STATUS_TERMINATE}, nil
	}
	s.Controller.wake(client.ObjectKeyFromObject(vm))
	return &vmpb.RunLeaseUpdate{Status: vmpb.RunLeaseUpdate_STATUS_UNKNOWN}, nil
}

// podOf is a Pod of this very VM that has not ended; nil if there is none of that name.
func (s *service) podOf(ctx context.Context, vm *v1alpha1.VirtualMachine, name string) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	err := s.APIReader.Get(ctx, client.ObjectKey{Namespace: vm.Namespace, Name: name}, pod)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, unavailable(ctx, err)
	}
	if !owns(vm, pod) || finished(pod) {
		return nil, nil
	}
	return pod, nil
}

// ReportState implements VMController.
func (s *service) ReportState(ctx context.Context, request *vmpb.ReportStateRequest) (*vmpb.ReportStateResponse, error) {
	key, err := caller(ctx, request.GetUs())
	if err != nil {
		return nil, err
	}
	if err := s.acceptReport(ctx, key, request); err != nil {
		return nil, err
	}
	if request.GetState() != vmpb.ReportStateRequest_STATE_UNKNOWN && s.reports.put(key, request) {
		s.Controller.wake(key)
	}
	return &vmpb.ReportStateResponse{}, nil
}

// acceptReport checks that the caller is authoritative, and writes down that the image is
// on its disk before the caller may start the VM.
func (s *service) acceptReport(ctx context.Context, key types.NamespacedName, request *vmpb.ReportStateRequest) error {
	var from client.Reader = s.Client
	for range swapTries {
		vm, err := read(ctx, from, key)
		if err != nil {
			return err
		}
		known := vm != nil && holds(vm, request.GetUs())
		if known && (!request.GetImagePrepared() || vm.Status.ImagePrepared) {
			return nil
		}
		if from != s.APIReader {
			from = s.APIReader
			continue
		}
		if !known {
			return notAuthoritative(request.GetUs())
		}
		if err := s.recordPrepared(ctx, vm); err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return unavailable(ctx, err)
		}
	}
	return status.Error(codes.Unavailable, "the virtual machine's object changes too often")
}

func notAuthoritative(us *vmpb.HypervisorID) error {
	return status.Error(codes.FailedPrecondition, fmt.Sprintf("run %d in pod %s is not authoritative", us.GetRunId(), us.GetPodName()))
}

// MigrationSwitchover implements VMController.
func (s *service) MigrationSwitchover(ctx context.Context, request *vmpb.MigrationSwitchoverRequest) (*vmpb.MigrationSwitchoverResponse, error) {
	us, them := request.GetUs(), request.GetThem()
	key, err := caller(ctx, us)
	if err == nil {
		err = complete(them)
	}
	if err != nil {
		return nil, err
	}
	if keyOf(them) != key {
		return nil, status.Error(codes.InvalidArgument, "the two hypervisors are of different virtual machines")
	}
	if err := s.switchOver(ctx, us, them); err != nil {
		return nil, err
	}
	return &vmpb.MigrationSwitchoverResponse{}, nil
}

// switchOver changes them into us.
func (s *service) switchOver(ctx context.Context, us, them *vmpb.HypervisorID) error {
	for range swapTries {
		vm, err := read(ctx, s.APIReader, keyOf(us))
		if err != nil {
			return err
		}
		switch judgeSwap(vm, us, them) {
		case swapRefused:
			return notAuthoritative(them)
		case swapDone:
			return nil
		}
		if err := s.trySwitch(ctx, vm, us); err != nil {
			return err
		}
	}
	return status.Error(codes.Unavailable, "the virtual machine's object changes too often")
}

// trySwitch tries to make us authoritative. Whether it did so, the next look at the
// object tells: a conflict says nothing of who won.
func (s *service) trySwitch(ctx context.Context, vm *v1alpha1.VirtualMachine, us *vmpb.HypervisorID) error {
	pod, err := s.podOf(ctx, vm, us.GetPodName())
	if err != nil {
		return err
	}
	if pod == nil {
		return status.Error(codes.FailedPrecondition, "the caller's pod has ended, or is not of this virtual machine")
	}
	err = s.swapAuthority(ctx, vm, v1alpha1.VirtualMachineAuthority{
		ActivePodName: pod.Name, ActivePodUID: pod.UID, ActiveRunID: runID(us), VolumeClaimName: claimOf(pod),
	})
	if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return unavailable(ctx, err)
	}
	s.streams.wake(client.ObjectKeyFromObject(vm))
	return nil
}

// EnsureMigrationTarget implements VMController. There is no live migration yet: a VM
// leaves its host by shutting down, and starts on another.
func (s *service) EnsureMigrationTarget(ctx context.Context, request *vmpb.EnsureMigrationTargetRequest) (*vmpb.EnsureMigrationTargetResponse, error) {
	key, err := caller(ctx, request.GetUs())
	if err != nil {
		return nil, err
	}
	vm, err := read(ctx, s.APIReader, key)
	if err != nil {
		return nil, err
	}
	if vm == nil || !holds(vm, request.GetUs()) {
		return nil, notAuthoritative(request.GetUs())
	}
	return &vmpb.EnsureMigrationTargetResponse{Action: vmpb.EnsureMigrationTargetResponse_ACTION_SOFT_SHUTDOWN}, nil
}
