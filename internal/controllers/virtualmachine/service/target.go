package service

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/authority"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

const (
	// targetTimeout is how long a call waits for a target. Hypervisors retry after that.
	targetTimeout = 30 * time.Second
	// reportTimeout is how long a call waits for a report of its caller. A hypervisor sends a report immediately
	// after it has opened its run lease.
	reportTimeout = 5 * time.Second
	// healthInterval is the time between two health checks, and healthTimeout is the timeout of one.
	healthInterval = time.Second
	healthTimeout  = 5 * time.Second
)

// EnsureMigrationTarget implements VMController. It reserves the target in the VM's status; the controller then
// creates the target's Pod.
func (s *Service) EnsureMigrationTarget(ctx context.Context, request *vmpb.EnsureMigrationTargetRequest) (*vmpb.EnsureMigrationTargetResponse, error) {
	us := request.GetUs()
	key, err := caller(ctx, us)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, targetTimeout)
	defer cancel()
	changed, closeLease := s.open(key, "") // not for a particular Pod
	defer closeLease()
	w := &wait{Service: s, us: us, vm: key, began: s.Registry.Clock.Now(), stopping: stopping(request)}
	for {
		response, pause, err := w.try(ctx)
		if response != nil || err != nil {
			return response, err
		}
		select {
		case <-changed.recheck:
		case <-later(pause):
		case <-ctx.Done():
			return nil, status.Error(codes.Unavailable, "the target of the migration is not ready yet")
		}
	}
}

// stopping returns how long ago the caller was asked to terminate; 0 if it was not.
func stopping(request *vmpb.EnsureMigrationTargetRequest) time.Duration {
	if request.GetStopping() == nil {
		return 0
	}
	return max(1, request.GetStopping().AsDuration())
}

func later(pause time.Duration) <-chan time.Time {
	if pause == 0 {
		return nil
	}
	return time.After(pause)
}

// wait is a call that waits for a migration target.
type wait struct {
	*Service
	us    *vmpb.HypervisorID
	vm    types.NamespacedName
	began time.Time
	// stopping is the time between the caller's SIGTERM and began; 0 if the caller was not asked to terminate.
	stopping time.Duration
	// target is the Pod that the call waits for; empty if there is none yet.
	target string
}

// try returns the response. If the response is nil, try must be called again after the returned delay, or after a
// change if the delay is 0.
func (w *wait) try(ctx context.Context) (*vmpb.EnsureMigrationTargetResponse, time.Duration, error) {
	report, waited := w.last(w.us), w.Registry.Clock.Now().Sub(w.began)
	if remaining := reportTimeout - waited; report == nil && remaining > 0 {
		return nil, min(remaining, healthInterval), w.authoritative(ctx)
	}
	source := authority.Source{Us: w.us, Report: report, Awaited: w.target}
	if w.stopping > 0 {
		source.Stopping = w.stopping + waited
	}
	target, err := w.Registry.EnsureTarget(ctx, source)
	switch {
	case ctx.Err() != nil:
		return nil, 0, nil
	case err != nil:
		return nil, 0, grpcError(ctx, w.us, err)
	case target.Refusal != "":
		w.Refused(ctx, w.vm, target.Refusal)
		return &vmpb.EnsureMigrationTargetResponse{Action: vmpb.EnsureMigrationTargetResponse_ACTION_SOFT_SHUTDOWN}, 0, nil
	case target.Pod == "":
		return nil, target.Pause, nil
	}
	w.target = target.Pod
	incoming := w.Incoming(w.vm, target.Pod)
	if incoming.GetEndpoint() == "" {
		return nil, target.Pause, nil
	}
	if !w.healthy(ctx, incoming) {
		return nil, healthInterval, nil
	}
	response := &vmpb.EnsureMigrationTargetResponse{
		Action:         vmpb.EnsureMigrationTargetResponse_ACTION_LIVE_MIGRATE,
		TargetEndpoint: incoming.GetEndpoint(), TargetPod: target.Pod, Limits: target.Limits,
	}
	if target.Grace > 0 {
		response.Grace = durationpb.New(target.Grace)
	}
	return response, 0, nil
}

func (w *wait) authoritative(ctx context.Context) error {
	if err := w.Registry.Confirm(ctx, w.us, nil); err != nil && ctx.Err() == nil {
		return grpcError(ctx, w.us, err)
	}
	return nil
}

// healthy reports whether the services of a target respond and present the certificate of the target.
func (w *wait) healthy(ctx context.Context, target *vmpb.ReportStateRequest) bool {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	pod := target.GetUs().GetPodName()
	conn, err := w.dial(w.vm, pod, target.GetEndpoint())
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	check := &healthpb.HealthCheckRequest{Service: vmpb.Hypervisor_ServiceDesc.ServiceName}
	health, err := healthpb.NewHealthClient(conn).Check(ctx, check)
	if err != nil {
		log.FromContext(ctx).Info("Migration target is not responding yet", "vm", w.vm, "pod", pod, "err", err.Error())
	}
	return health.GetStatus() == healthpb.HealthCheckResponse_SERVING
}

// reportIncoming stores a report of the target of a running migration. This process later connects to the endpoint in
// the report.
func (s *Service) reportIncoming(ctx context.Context, vm types.NamespacedName, report *vmpb.ReportStateRequest) (*vmpb.ReportStateResponse, error) {
	if report.GetEndpoint() != "" && !isAddress(report.GetEndpoint()) {
		return nil, errNoAddress
	}
	if err := s.Registry.ConfirmTarget(ctx, report.GetUs()); err != nil {
		return nil, grpcError(ctx, report.GetUs(), err)
	}
	s.mu.Lock()
	if last := s.targets[vm]; last.GetUs().GetPodName() != report.GetUs().GetPodName() || !overtaken(report, last) {
		s.targets[vm] = report
	}
	s.mu.Unlock()
	s.Recheck(vm)
	return &vmpb.ReportStateResponse{}, nil
}

// Incoming returns the last report of the migration target in a Pod; nil if this process has none.
func (s *Service) Incoming(vm types.NamespacedName, pod string) *vmpb.ReportStateRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	if report := s.targets[vm]; report.GetUs().GetPodName() == pod {
		return report
	}
	return nil
}

// last returns the last report of a process; nil if this process has none.
func (s *Service) last(us *vmpb.HypervisorID) *vmpb.ReportStateRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.reports[authority.KeyOf(us)]; known != nil && proto.Equal(known.last.GetUs(), us) {
		return known.last
	}
	return nil
}

// canMigrate reports whether a process has reported that it can migrate.
func (s *Service) canMigrate(us *vmpb.HypervisorID) bool { return s.last(us).GetCanMigrate() }
