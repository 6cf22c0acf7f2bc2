// Package service is the gRPC service for hypervisors.
//
// It serves VMController, with which hypervisors request the permission to run their VM and report
// its state, and CertificateAuthority, which issues the certificates that they need for that.
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

// Options configure a Service. All fields but Disks and one of the first two after Registry are required.
type Options struct {
	// Registry decides which hypervisor may run a VM.
	Registry *authority.Registry
	// Authority signs the certificates of this controller and of hypervisors. Not used with Identity.
	Authority *identity.Authority
	// Identity is that of this controller if another authority issues the certificates of controller and hypervisors. If
	// nil, Authority issues them.
	Identity *identity.Credentials
	// Enqueue requests a reconcile of a VM after a time, which may be 0. It does not block.
	Enqueue func(vm types.NamespacedName, after time.Duration)
	// Disks returns where the hypervisor in a Pod attaches the disks of its VM with a fencing token; nil if they are not
	// open to it yet. It does not block. If nil, no VM has a server of disks.
	Disks func(vm types.NamespacedName, pod string, token uint64) *vmpb.DiskServer
	// Refused is called with the reason when a VM that leaves its host must be shut down.
	Refused func(ctx context.Context, vm types.NamespacedName, why string)
}

// credentials are those of this controller.
func (o *Options) credentials() *identity.Credentials {
	if o.Identity != nil {
		return o.Identity
	}
	return identity.ForController(o.Authority, o.Registry.Clock.Now)
}

// Service implements VMController. Create one with New.
//
// Open run leases and the last reports are lost with the process. Hypervisors then open their
// leases again, and the status of a VM stays as it is until the next report.
type Service struct {
	vmpb.UnimplementedVMControllerServer
	Options

	mu      sync.Mutex
	leases  map[types.NamespacedName]map[*lease]struct{}
	reports map[types.NamespacedName]*reported
	// heard is when the lease of each VM was last granted, for leases that expire.
	heard map[types.NamespacedName]time.Time
	// targets has the last report of each VM's target of a migration.
	targets map[types.NamespacedName]*vmpb.ReportStateRequest
	// servers has the last report of each VM's server of disks.
	servers map[types.NamespacedName]*vmpb.ReportStateRequest
}

// reported is the last report about a VM, and when reports cause its status to be written.
type reported struct {
	last *vmpb.ReportStateRequest
	// shown is the report that the status shows: the last one, or an earlier one that differs only in its progress.
	shown *vmpb.ReportStateRequest
	// writes limits how often reports cause a write.
	writes *rate.Limiter
	// due is the time of the last requested write, which covers all reports until then.
	due time.Time
	// requested reports whether no pass has begun since a write was requested.
	requested bool
	// stop is when the guest was stopped for the migration to the Pod to, and stood is the downtime; 0 until it is
	// known.
	stop  time.Time
	to    string
	stood time.Duration
}

// measure measures the downtime of a migration by the clock of this process, from the report of the source to that of
// the target. Neither of them knows both times.
func (r *reported) measure(report *vmpb.ReportStateRequest, now time.Time) {
	news := report.GetMigration()
	switch news.GetPhase() {
	case vmpb.ReportStateRequest_Migration_PHASE_STOPPED:
		if r.to != news.GetTargetPod() {
			r.stop, r.to, r.stood = now, news.GetTargetPod(), 0
		}
	case vmpb.ReportStateRequest_Migration_PHASE_DONE:
		if news.GetDowntime() != nil || r.to != report.GetUs().GetPodName() {
			return
		}
		if r.stood == 0 {
			r.stood = max(time.Millisecond, now.Sub(r.stop).Round(time.Millisecond))
		}
		news.Downtime = durationpb.New(r.stood)
	}
}

// A VM that starts sends a few reports within a second, each of which is written immediately. After that, one write
// covers all reports of two seconds.
const (
	writeEvery = 2 * time.Second
	writeBurst = 5
)

// lease is an open run lease.
type lease struct {
	pod string
	// recheck receives when the response may have changed.
	recheck chan struct{}
}

// New returns a Service. Serve it with a Server.
func New(options Options) *Service {
	return &Service{
		Options: options,
		leases:  map[types.NamespacedName]map[*lease]struct{}{},
		reports: map[types.NamespacedName]*reported{},
		heard:   map[types.NamespacedName]time.Time{},
		targets: map[types.NamespacedName]*vmpb.ReportStateRequest{},
		servers: map[types.NamespacedName]*vmpb.ReportStateRequest{},
	}
}

// open adds a run lease until close is called.
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

// Recheck evaluates the run leases of a VM again, because its object may have changed.
func (s *Service) Recheck(vm types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for open := range s.leases[vm] {
		select {
		case open.recheck <- struct{}{}:
		default: // due already
		}
	}
}

// HasLease reports whether the hypervisor in a Pod of a VM has a run lease open.
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
// the disk; nil if this process has none. Its progress is at most as new as the last call of Take.
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

// keep stores a report. If the report differs from the last one, keep returns true and the time after which to write
// the status, unless that was returned for an earlier report.
func (s *Service) keep(vm types.NamespacedName, report *vmpb.ReportStateRequest) (after time.Duration, write bool) {
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
	if now.Before(known.due) { // a pass began before the requested time, and did not see this report
		return known.due.Sub(now), true
	}
	after = known.writes.ReserveN(now, 1).DelayFrom(now)
	known.due = now.Add(after)
	return after, true
}

// Take notes that a pass begins, which sees all reports until now. If the pass has another cause, such as the write of
// the pass before it, it sees no progress before that is due; otherwise progress would be written as often as it is
// reported. Take then requests another pass, because the queue drops requests for later when a pass begins.
func (s *Service) Take(vm types.NamespacedName) {
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
	rest := proto.CloneOf(report)
	rest.Message, rest.DoneBytes, rest.TotalBytes, rest.Sequence = "", 0, 0, 0
	if copying := rest.GetMigration(); copying != nil {
		copying.Message, copying.DoneBytes, copying.TotalBytes = "", 0, 0
	}
	return rest
}

// overtaken reports whether a report was delivered after a later one of the same run. That happens to calls on a
// connection that was silent, whose callers no longer wait.
func overtaken(report, last *vmpb.ReportStateRequest) bool {
	return report.GetSequence() != 0 && report.GetSequence() < last.GetSequence() && proto.Equal(report.GetUs(), last.GetUs())
}

// Forget drops the reports of a VM that is gone.
func (s *Service) Forget(vm types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.reports, vm)
	delete(s.targets, vm)
	delete(s.servers, vm)
	delete(s.heard, vm)
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
			return answer(ctx, us, err)
		}
		if update.GetStatus() == vmpb.RunLeaseUpdate_STATUS_UNKNOWN {
			s.Enqueue(key, 0) // the controller may elect the caller
		}
		if first && update.GetValidFor() != nil {
			s.hear(key)
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

// evaluate returns the next update of a run lease, and whether it is the first one that authorizes the caller. That one
// is based on the API server, because a lease that expires is valid from the request on. The target of a migration is
// authorized when it has become authoritative.
func (s *Service) evaluate(ctx context.Context, us *vmpb.HypervisorID, last *vmpb.RunLeaseUpdate) (update *vmpb.RunLeaseUpdate, first bool, err error) {
	first = last.GetStatus() != vmpb.RunLeaseUpdate_STATUS_OK
	update, err = s.Registry.Lease(ctx, us, first)
	if err == nil && !first && update.GetValidFor() != nil && last.GetValidFor() == nil {
		first = true
		update, err = s.Registry.Lease(ctx, us, first)
	}
	return update, first, err
}

// hear records that a lease that expires is granted.
func (s *Service) hear(vm types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heard[vm] = s.Registry.Clock.Now()
}

// Heard returns when a lease of a VM that expires was last granted; zero if this process has granted none.
func (s *Service) Heard(vm types.NamespacedName) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.heard[vm]
}

// release releases the lease of a hypervisor whose guest has terminated for good.
func (s *Service) release(ctx context.Context, key types.NamespacedName, us *vmpb.HypervisorID) error {
	if err := s.Registry.Release(ctx, us); err != nil {
		return answer(ctx, us, err)
	}
	s.Enqueue(key, 0)
	return nil
}

// ReportState implements VMController. It stores that the image is on the disk before it responds, because the caller
// then starts the VM.
func (s *Service) ReportState(ctx context.Context, request *vmpb.ReportStateRequest) (*vmpb.ReportStateResponse, error) {
	us := request.GetUs()
	key, err := caller(ctx, us)
	if err != nil {
		return nil, err
	}
	if is, err := s.Registry.ConfirmServer(ctx, us); err != nil {
		return nil, answer(ctx, us, err)
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
		return nil, answer(ctx, us, err)
	}
	if request.GetState() != vmpb.ReportStateRequest_STATE_UNKNOWN {
		if after, write := s.keep(key, request); write {
			s.Enqueue(key, after)
		}
	}
	return &vmpb.ReportStateResponse{}, nil
}

// waitsForDisk reports whether a hypervisor waits for the lock of the disk. Until it has the lock, it requests no run
// lease.
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
		return nil, status.Error(codes.InvalidArgument, "the two hypervisors are of different virtual machines")
	}
	defer s.Recheck(key)
	if err := s.Registry.SwitchOver(ctx, us, them); err != nil {
		return nil, answer(ctx, them, err)
	}
	return &vmpb.MigrationSwitchoverResponse{}, nil
}

// caller returns the VM of the caller, whose identity must be that of its certificate.
func caller(ctx context.Context, us *vmpb.HypervisorID) (types.NamespacedName, error) {
	key := authority.KeyOf(us)
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

// answer returns the gRPC status for an error of the registry. who is the process that should be authoritative. Errors
// of the API server are logged, not sent.
func answer(ctx context.Context, who *vmpb.HypervisorID, err error) error {
	switch {
	case errors.Is(err, authority.ErrNotAuthoritative):
		return status.Error(codes.FailedPrecondition, fmt.Sprintf("run %d in pod %s is not authoritative", who.GetRunId(), who.GetPodName()))
	case errors.Is(err, authority.ErrPodEnded), errors.Is(err, authority.ErrEarlierRun):
		return status.Error(codes.FailedPrecondition, err.Error())
	case errors.Is(err, authority.ErrBusy):
		return status.Error(codes.Unavailable, err.Error())
	}
	log.FromContext(ctx).Error(err, "answering a hypervisor")
	return status.Error(codes.Unavailable, "the virtual machine's object cannot be read or written now")
}
