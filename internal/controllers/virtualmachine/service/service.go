// Package service implements the gRPC services for hypervisors.
//
// Hypervisors use VMController to request permission to run their VM and to report its state. They use
// CertificateAuthority to get the certificate that they need for that.
package service

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/authority"
	"github.com/millwright-dev/millwright/internal/vm/identity"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// Options configure a Service. All fields are required, except that Disks and NetworkOf are optional and that only one of Authority
// and Identity is needed.
type Options struct {
	// Registry decides which hypervisor may run a VM.
	Registry *authority.Registry
	// Authority signs the certificates of this controller and of the hypervisors. It is not used if Identity is set.
	Authority *identity.Authority
	// Identity holds the credentials of this controller if another authority issues the certificates of the
	// controller and the hypervisors. If nil, Authority issues them.
	Identity *identity.Credentials
	// Enqueue requests a reconcile pass for a VM after a delay, which may be 0. It does not block.
	Enqueue func(vm types.NamespacedName, after time.Duration)
	// Disks returns where the hypervisor in a Pod attaches the disks of its VM with a fencing token; nil if the disks
	// are not open to it yet. It does not block. If Disks is nil, no VM has a disk server.
	Disks func(vm types.NamespacedName, pod string, token uint64) *vmpb.DiskServer
	// NetworkOf returns the network of the VMs in a namespace. The guests of VMs in the same network reach each other. If
	// nil, guests reach no others, and Overlay is not served.
	NetworkOf func(namespace string) string
	// Refused is called with the reason when a VM that must leave its host cannot be migrated and must be shut down.
	Refused func(ctx context.Context, vm types.NamespacedName, why string)
}

// credentials returns the credentials of this controller.
func (o *Options) credentials() *identity.Credentials {
	if o.Identity != nil {
		return o.Identity
	}
	return identity.ForController(o.Authority, o.Registry.Clock.Now)
}

// Service implements VMController. Create one with New.
//
// Open run leases and the last reports are lost when the process exits. Hypervisors then open their leases again, and
// the status of a VM stays as it is until the next report.
type Service struct {
	vmpb.UnimplementedVMControllerServer
	Options
	overlays *overlays // nil without NetworkOf

	mu      sync.Mutex
	leases  map[types.NamespacedName]map[*lease]struct{}
	reports map[types.NamespacedName]*reported
	// granted is when a lease that expires was last granted for each VM.
	granted map[types.NamespacedName]time.Time
	// targets has the last report of each VM's migration target.
	targets map[types.NamespacedName]*vmpb.ReportStateRequest
	// servers has the last report of each VM's disk server.
	servers map[types.NamespacedName]*vmpb.ReportStateRequest
}

// reported is the last report about a VM, together with the time at which the status is next written.
type reported struct {
	last *vmpb.ReportStateRequest
	// shown is the report on which the status is based: the last one, or an earlier one that differs only in its
	// progress.
	shown *vmpb.ReportStateRequest
	// writes limits how often reports cause the status to be written.
	writes *rate.Limiter
	// due is the time of the last requested write, which covers all reports until then.
	due time.Time
	// requested reports whether a write was requested and no pass has begun since.
	requested bool
	// stoppedAt is when the guest was stopped for the migration to the Pod target. downtime is 0 until it is known.
	stoppedAt time.Time
	target    string
	downtime  time.Duration
}

// measure measures the downtime of a migration with the clock of this process: the time between the source's report
// that the guest has stopped and the target's report that the migration is done. Neither of the two processes knows
// both times.
func (r *reported) measure(report *vmpb.ReportStateRequest, now time.Time) {
	current := report.GetMigration()
	switch current.GetPhase() {
	case vmpb.ReportStateRequest_Migration_PHASE_STOPPED:
		if r.target != current.GetTargetPod() {
			r.stoppedAt, r.target, r.downtime = now, current.GetTargetPod(), 0
		}
	case vmpb.ReportStateRequest_Migration_PHASE_DONE:
		if current.GetDowntime() != nil || r.target != report.GetUs().GetPodName() {
			return
		}
		if r.downtime == 0 {
			r.downtime = max(time.Millisecond, now.Sub(r.stoppedAt).Round(time.Millisecond))
		}
		current.Downtime = durationpb.New(r.downtime)
	}
}

// A VM that starts sends a few reports within a second, each of which is written immediately. After that, one write
// covers the reports of two seconds.
const (
	writeEvery = 2 * time.Second
	writeBurst = 5
)

// lease is an open run lease.
type lease struct {
	pod string
	// recheck receives a value when the response may have changed.
	recheck chan struct{}
}

// New returns a Service. Serve it with a Server.
func New(options Options) *Service {
	s := &Service{
		Options: options,
		leases:  map[types.NamespacedName]map[*lease]struct{}{},
		reports: map[types.NamespacedName]*reported{},
		granted: map[types.NamespacedName]time.Time{},
		targets: map[types.NamespacedName]*vmpb.ReportStateRequest{},
		servers: map[types.NamespacedName]*vmpb.ReportStateRequest{},
	}
	if options.NetworkOf != nil {
		s.overlays = newOverlays(s)
	}
	return s
}

// open adds a run lease that stays open until close is called.
func (s *Service) open(vm types.NamespacedName, pod string) (opened *lease, close func()) {
	opened = &lease{pod: pod, recheck: make(chan struct{}, 1)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leases[vm] == nil {
		s.leases[vm] = map[*lease]struct{}{}
	}
	s.leases[vm][opened] = struct{}{}
	return opened, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.leases[vm], opened)
		if len(s.leases[vm]) == 0 {
			delete(s.leases, vm)
		}
	}
}

// Recheck reevaluates the open run leases of a VM, and its location for the hypervisors of other VMs, after its object
// or its Pods may have changed.
func (s *Service) Recheck(vm types.NamespacedName) {
	if s.overlays != nil {
		s.overlays.refresh(context.Background(), vm) // reads only from the cache
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for open := range s.leases[vm] {
		select {
		case open.recheck <- struct{}{}:
		default: // a recheck is already due
		}
	}
}

// HasLease reports whether the hypervisor in a Pod of a VM has an open run lease.
func (s *Service) HasLease(vm types.NamespacedName, pod string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for open := range s.leases[vm] {
		if open.pod == pod {
			return true
		}
	}
	return false
}

// Report returns the last report of a VM's authoritative hypervisor, or of the next process in its Pod that waits for
// the disk; nil if this process has none. The progress in the report is as of the last call of BeginPass, or older.
func (s *Service) Report(vm *v1alpha1.VirtualMachine) *vmpb.ReportStateRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.reports[client.ObjectKeyFromObject(vm)]
	if known == nil {
		return nil
	}
	if us := known.shown.GetUs(); !authority.Holds(vm, us) && (!waitsForDisk(known.shown) || !authority.MayFollow(vm, us)) {
		return nil
	}
	return known.shown
}

// store stores a report. If it differs from the last one and no write is already requested, store returns true and
// the delay after which to write the status.
func (s *Service) store(vm types.NamespacedName, report *vmpb.ReportStateRequest) (after time.Duration, write bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.reports[vm]
	if known == nil {
		known = &reported{writes: rate.NewLimiter(rate.Every(writeEvery), writeBurst)}
		s.reports[vm] = known
	}
	known.measure(report, s.Registry.Clock.Now())
	if proto.Equal(known.last, report) || overtaken(report, known.last) {
		return 0, false
	}
	known.last = report
	if !onlyProgress(known.shown, report) {
		known.shown = report
	}
	if known.requested {
		return 0, false
	}
	known.requested = true
	now := s.Registry.Clock.Now()
	if now.Before(known.due) { // a pass began before the requested time and did not see this report
		return known.due.Sub(now), true
	}
	after = known.writes.ReserveN(now, 1).DelayFrom(now)
	known.due = now.Add(after)
	return after, true
}

// BeginPass records that a pass begins, which sees all reports received until now. If the pass has another cause,
// such as the status write of the last pass, it does not see progress before that is due; otherwise progress would be
// written as often as it is reported. BeginPass then requests another pass, because the queue drops delayed requests
// when a pass begins.
func (s *Service) BeginPass(vm types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known, now := s.reports[vm], s.Registry.Clock.Now()
	switch {
	case known == nil:
	case known.requested && known.shown != known.last && now.Before(known.due):
		s.Enqueue(vm, known.due.Sub(now))
	default:
		known.shown, known.requested = known.last, false
	}
}

// onlyProgress reports whether two reports differ only in their progress.
func onlyProgress(before, after *vmpb.ReportStateRequest) bool {
	return before != nil && proto.Equal(withoutProgress(before), withoutProgress(after))
}

func withoutProgress(report *vmpb.ReportStateRequest) *vmpb.ReportStateRequest {
	copied := proto.CloneOf(report)
	copied.Message, copied.DoneBytes, copied.TotalBytes, copied.Sequence = "", 0, 0, 0
	if copying := copied.GetMigration(); copying != nil {
		copying.Message, copying.DoneBytes, copying.TotalBytes = "", 0, 0
	}
	return copied
}

// overtaken reports whether a report was delivered after a later one of the same run. That can happen on a connection
// that was silent, whose callers no longer wait.
func overtaken(report, last *vmpb.ReportStateRequest) bool {
	return report.GetSequence() != 0 && report.GetSequence() < last.GetSequence() && proto.Equal(report.GetUs(), last.GetUs())
}

// Forget drops the reports and the location of a deleted VM.
func (s *Service) Forget(vm types.NamespacedName) {
	if s.overlays != nil {
		s.overlays.forget(vm)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.reports, vm)
	delete(s.targets, vm)
	delete(s.servers, vm)
	delete(s.granted, vm)
}

// RunLease implements VMController.
func (s *Service) RunLease(request *vmpb.RunLeaseRequest, out grpc.ServerStreamingServer[vmpb.RunLeaseUpdate]) error {
	ctx, us := out.Context(), request.GetUs()
	key, err := caller(ctx, us)
	if err != nil {
		return err
	}
	if request.GetRelease() {
		return s.release(ctx, key, us)
	}
	lease, closeLease := s.open(key, us.GetPodName())
	defer closeLease()
	var last *vmpb.RunLeaseUpdate
	for {
		update, first, err := s.evaluate(ctx, us, last)
		if err != nil {
			return grpcError(ctx, us, err)
		}
		if update.GetStatus() == vmpb.RunLeaseUpdate_STATUS_UNKNOWN {
			s.Enqueue(key, 0) // the controller may elect the caller
		}
		if first && update.GetValidFor() != nil {
			s.recordGrant(key)
		}
		update.Migrate = update.GetMigrate() && s.canMigrate(us)
		update.DiskServer = s.diskServer(key, us, update.GetFencingToken())
		if last == nil || !proto.Equal(last, update) {
			if err := out.Send(update); err != nil {
				return err
			}
			last = update
		}
		select {
		case <-lease.recheck:
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

// evaluate returns the next update of a run lease, and whether it is the first one that authorizes the caller. The
// first update is based on the API server, because a lease that expires is valid from the time of the request. The
// target of a migration counts as authorized once it is authoritative.
func (s *Service) evaluate(ctx context.Context, us *vmpb.HypervisorID, last *vmpb.RunLeaseUpdate) (update *vmpb.RunLeaseUpdate, first bool, err error) {
	first = last.GetStatus() != vmpb.RunLeaseUpdate_STATUS_OK
	update, err = s.Registry.Lease(ctx, us, first)
	if err == nil && !first && update.GetValidFor() != nil && last.GetValidFor() == nil {
		first = true
		update, err = s.Registry.Lease(ctx, us, first)
	}
	return update, first, err
}

// recordGrant records that a lease that expires is being granted.
func (s *Service) recordGrant(vm types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.granted[vm] = s.Registry.Clock.Now()
}

// LastGrant returns when a lease that expires was last granted for a VM; zero if this process has granted none.
func (s *Service) LastGrant(vm types.NamespacedName) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.granted[vm]
}

// release releases the lease of a hypervisor whose guest has terminated for good.
func (s *Service) release(ctx context.Context, key types.NamespacedName, us *vmpb.HypervisorID) error {
	if err := s.Registry.Release(ctx, us); err != nil {
		return grpcError(ctx, us, err)
	}
	s.Enqueue(key, 0)
	return nil
}

// ReportState implements VMController. It stores in the status that the image is complete before it responds, because
// the caller then starts the VM.
func (s *Service) ReportState(ctx context.Context, request *vmpb.ReportStateRequest) (*vmpb.ReportStateResponse, error) {
	us := request.GetUs()
	key, err := caller(ctx, us)
	if err != nil {
		return nil, err
	}
	if is, err := s.Registry.ConfirmServer(ctx, us); err != nil {
		return nil, grpcError(ctx, us, err)
	} else if is {
		return s.reportServer(key, request)
	}
	if request.GetState() == vmpb.ReportStateRequest_STATE_INCOMING {
		return s.reportIncoming(ctx, key, request)
	}
	if waitsForDisk(request) && !s.HasLease(key, us.GetPodName()) {
		err = s.Registry.ConfirmNext(ctx, us)
	} else {
		err = s.Registry.Confirm(ctx, us, request)
	}
	if err != nil {
		return nil, grpcError(ctx, us, err)
	}
	if request.GetState() != vmpb.ReportStateRequest_STATE_UNKNOWN {
		if after, write := s.store(key, request); write {
			s.Enqueue(key, after)
		}
	}
	return &vmpb.ReportStateResponse{}, nil
}

// waitsForDisk reports whether a hypervisor is waiting for the lock of the disk. It requests no run lease before it
// has the lock.
func waitsForDisk(report *vmpb.ReportStateRequest) bool {
	return report.GetCause() == vmpb.ReportStateRequest_CAUSE_DISK_LOCKED
}

// MigrationSwitchover implements VMController.
func (s *Service) MigrationSwitchover(ctx context.Context, request *vmpb.MigrationSwitchoverRequest) (*vmpb.MigrationSwitchoverResponse, error) {
	us, them := request.GetUs(), request.GetThem()
	key, err := caller(ctx, us)
	if err == nil {
		err = complete(them)
	}
	if err != nil {
		return nil, err
	}
	if authority.KeyOf(them) != key {
		return nil, status.Error(codes.InvalidArgument, "the two hypervisors belong to different virtual machines")
	}
	defer s.Recheck(key)
	if err := s.Registry.SwitchOver(ctx, us, them); err != nil {
		return nil, grpcError(ctx, them, err)
	}
	if s.overlays != nil {
		s.overlays.switched(ctx, key, us, them)
	}
	return &vmpb.MigrationSwitchoverResponse{}, nil
}

// caller returns the VM of the caller. The identity in the request must match that in the caller's certificate.
func caller(ctx context.Context, us *vmpb.HypervisorID) (types.NamespacedName, error) {
	key := authority.KeyOf(us)
	if err := complete(us); err != nil {
		return key, err
	}
	return key, identity.RequireVM(ctx, us.GetNamespace(), us.GetVmName(), us.GetPodName())
}

func complete(id *vmpb.HypervisorID) error {
	if id.GetVmName() == "" || id.GetNamespace() == "" || id.GetPodName() == "" || id.GetRunId() == 0 {
		return status.Error(codes.InvalidArgument, "the hypervisor's identity is incomplete")
	}
	return nil
}

// grpcError returns the gRPC status for an error of the registry. who is the process that should be authoritative.
// Errors of the API server are logged, not sent.
func grpcError(ctx context.Context, who *vmpb.HypervisorID, err error) error {
	switch {
	case errors.Is(err, authority.ErrNotAuthoritative):
		return status.Error(codes.FailedPrecondition, fmt.Sprintf("run %d in pod %s is not authoritative", who.GetRunId(), who.GetPodName()))
	case errors.Is(err, authority.ErrPodEnded), errors.Is(err, authority.ErrEarlierRun):
		return status.Error(codes.FailedPrecondition, err.Error())
	case errors.Is(err, authority.ErrBusy):
		return status.Error(codes.Unavailable, err.Error())
	}
	log.FromContext(ctx).Error(err, "Failed to process a hypervisor's request")
	return status.Error(codes.Unavailable, "cannot read or write the virtual machine at the moment")
}
