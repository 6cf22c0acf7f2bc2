package hypervisor_test

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// authority makes a fakeController decide which hypervisor runs the VM.
type authority struct {
	// holder is the authoritative hypervisor. Its run is the run of its first lease.
	holder *vmpb.HypervisorID
	// target is the Pod that may take over, or empty if there is none.
	target string
	// migrate reports whether the holder's lease requests a migration.
	migrate bool
	// ensure responds to EnsureMigrationTarget. If nil, the response is ACTION_SOFT_SHUTDOWN.
	ensure func(ctx context.Context) (*vmpb.EnsureMigrationTargetResponse, error)
	// before and after, if set, are called for each switchover, and their error is the response. after is called
	// once the switchover is done.
	before, after func(us *vmpb.HypervisorID) error
	// lease is the duration of the holder's leases. If 0, leases do not expire, or are withheld.
	lease time.Duration
	// complete, if set, completes the responses to the holder and the target. It must not block.
	complete func(us *vmpb.HypervisorID, response *vmpb.RunLeaseUpdate)
	// past lists the hypervisors that were authoritative, in order.
	past []*vmpb.HypervisorID
}

// Decide makes the Pod authoritative.
func (c *fakeController) Decide(pod string) {
	c.change(func() { c.deciding = &authority{holder: &vmpb.HypervisorID{PodName: pod}} })
}

// Change modifies the authority.
func (c *fakeController) Change(apply func(*authority)) { c.change(func() { apply(c.deciding) }) }

// Holder returns the authoritative hypervisor.
func (c *fakeController) Holder() *vmpb.HypervisorID {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.deciding.holder
}

// responseTo returns the response for the streams of one hypervisor. The caller must hold the lock.
func (c *fakeController) responseTo(us *vmpb.HypervisorID) *vmpb.RunLeaseUpdate {
	a := c.deciding
	if a == nil {
		return c.response
	}
	if a.holder.GetRunId() == 0 && us.GetPodName() == a.holder.GetPodName() {
		a.holder = us
	}
	switch {
	case proto.Equal(us, a.holder):
		response := proto.CloneOf(c.response)
		response.Migrate = a.migrate
		if a.lease > 0 {
			response.ValidFor, response.FencingToken = durationpb.New(a.lease), uint64(len(a.past)+1)
		}
		return a.completed(us, response)
	case us.GetPodName() == a.target:
		return a.completed(us, leaseOK())
	default:
		return leaseTerminated()
	}
}

func (a *authority) completed(us *vmpb.HypervisorID, response *vmpb.RunLeaseUpdate) *vmpb.RunLeaseUpdate {
	if a.complete != nil {
		a.complete(us, response)
	}
	return response
}

// EnsureMigrationTarget implements vmpb.VMControllerServer.
func (c *fakeController) EnsureMigrationTarget(ctx context.Context, request *vmpb.EnsureMigrationTargetRequest) (*vmpb.EnsureMigrationTargetResponse, error) {
	c.mu.Lock()
	a := c.deciding
	c.mu.Unlock()
	switch {
	case a == nil || a.ensure == nil:
		return &vmpb.EnsureMigrationTargetResponse{Action: vmpb.EnsureMigrationTargetResponse_ACTION_SOFT_SHUTDOWN}, nil
	case !proto.Equal(request.GetUs(), c.Holder()):
		return nil, status.Error(codes.FailedPrecondition, "the caller is not authoritative")
	}
	return a.ensure(ctx)
}

// MigrationSwitchover implements vmpb.VMControllerServer.
func (c *fakeController) MigrationSwitchover(_ context.Context, request *vmpb.MigrationSwitchoverRequest) (*vmpb.MigrationSwitchoverResponse, error) {
	us, them := request.GetUs(), request.GetThem()
	c.mu.Lock()
	before, after := c.deciding.before, c.deciding.after
	c.mu.Unlock()
	if before != nil {
		if err := before(us); err != nil {
			return nil, err
		}
	}
	err := status.Error(codes.FailedPrecondition, "another hypervisor is authoritative")
	c.Change(func(a *authority) {
		switch {
		case proto.Equal(a.holder, us):
			err = nil
		case proto.Equal(a.holder, them):
			err = nil
			a.past = append(a.past, a.holder)
			a.holder, a.target, a.migrate = us, "", false
		}
	})
	if err == nil && after != nil {
		err = after(us)
	}
	if err != nil {
		return nil, err
	}
	return &vmpb.MigrationSwitchoverResponse{}, nil
}

// Phases returns the phases of migrations that a Pod reported, without repetitions.
func (c *fakeController) Phases(pod string) []vmpb.ReportStateRequest_Migration_Phase {
	var phases []vmpb.ReportStateRequest_Migration_Phase
	for _, report := range c.Reports() {
		if migration := report.GetMigration(); migration != nil && report.GetUs().GetPodName() == pod {
			phases = append(phases, migration.GetPhase())
		}
	}
	return slices.Compact(phases)
}
