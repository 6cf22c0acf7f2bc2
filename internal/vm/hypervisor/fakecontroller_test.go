package hypervisor_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/controller"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	overlaypb "github.com/millwright-dev/millwright/proto/overlay"
	"github.com/millwright-dev/millwright/test/support/memnet"
)

var errAway = errors.New("the controller is unavailable")

// fakeController is a VMController without Kubernetes whose responses are set by tests. It uses only memory, so it
// works with testing/synctest. The caller must close it.
type fakeController struct {
	vmpb.UnimplementedVMControllerServer
	server  *grpc.Server
	network *memnet.Network
	overlay fakeOverlay

	mu      sync.Mutex
	changed chan struct{}
	// response is the response that streams receive, or nil for none. Each epoch has its own streams.
	response  *vmpb.RunLeaseUpdate
	epoch     int
	away      bool
	conns     map[net.Conn]struct{}
	refuse    error
	open      int
	mostOpen  int
	runs      []*vmpb.HypervisorID
	released  []*vmpb.HypervisorID
	reports   []*vmpb.ReportStateRequest
	refusals  int
	reportErr error
	// deciding is the authority, if the controller has one; see fakeauthority_test.go.
	deciding *authority
}

// newFakeController returns a controller that authorizes every hypervisor.
func newFakeController() *fakeController {
	c := &fakeController{
		server: grpc.NewServer( // configured like the VM controller
			grpc.ConnectionTimeout(10*time.Second),
			grpc.KeepaliveParams(keepalive.ServerParameters{Time: 20 * time.Second, Timeout: 20 * time.Second, MaxConnectionIdle: 5 * time.Minute}),
			grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 20 * time.Second})),
		network: memnet.New(), overlay: fakeOverlay{joined: make(chan *overlaypb.JoinRequest, 1), left: make(chan *overlaypb.LeaveRequest, 1)},
		changed: make(chan struct{}), conns: map[net.Conn]struct{}{},
		response: leaseOK(),
	}
	vmpb.RegisterVMControllerServer(c.server, c)
	overlaypb.RegisterOverlayServer(c.server, &c.overlay)
	go func() { _ = c.server.Serve(c.network) }()
	return c
}

func leaseOK() *vmpb.RunLeaseUpdate {
	return &vmpb.RunLeaseUpdate{Status: vmpb.RunLeaseUpdate_STATUS_OK}
}

func leasePaused() *vmpb.RunLeaseUpdate {
	return &vmpb.RunLeaseUpdate{Status: vmpb.RunLeaseUpdate_STATUS_OK, Paused: true}
}

func leaseTerminated() *vmpb.RunLeaseUpdate {
	return &vmpb.RunLeaseUpdate{Status: vmpb.RunLeaseUpdate_STATUS_TERMINATE}
}

// Connect implements Config.Connect. It connects to this controller, whatever the target.
func (c *fakeController) Connect(string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///controller", append(controller.DialOptions(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(c.dial))...)
}

func (c *fakeController) dial(ctx context.Context, _ string) (net.Conn, error) {
	c.mu.Lock()
	away := c.away
	c.mu.Unlock()
	if away {
		return nil, errAway
	}
	conn, err := c.network.Dial(ctx, "")
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conns[conn] = struct{}{}
	return conn, nil
}

// change applies a change and wakes all streams.
func (c *fakeController) change(apply func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	apply()
	close(c.changed)
	c.changed = make(chan struct{})
}

// Respond sets the response of all streams from now on, or nil for none.
func (c *fakeController) Respond(response *vmpb.RunLeaseUpdate) {
	c.change(func() { c.response = response })
}

// EndStreams closes the current streams without an error.
func (c *fakeController) EndStreams() { c.change(func() { c.epoch++ }) }

// RefuseStreams makes new streams fail and closes the current ones. If err is nil, streams are allowed again.
func (c *fakeController) RefuseStreams(err error) {
	c.change(func() { c.refuse = err; c.epoch++ })
}

// RefuseReports makes reports fail. If err is nil, reports are allowed again.
func (c *fakeController) RefuseReports(err error) { c.change(func() { c.reportErr = err }) }

// SetAway closes all connections and refuses new ones. If away is false, connections are allowed again.
func (c *fakeController) SetAway(away bool) {
	c.change(func() {
		c.away = away
		for conn := range c.conns {
			_ = conn.Close()
			delete(c.conns, conn)
		}
	})
}

// Close closes the controller.
func (c *fakeController) Close() { c.server.Stop() }

// Streams returns the number of open streams, and the maximum number of streams that were open at one time.
func (c *fakeController) Streams() (open, most int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open, c.mostOpen
}

// Runs returns the runs that have opened streams, in order.
func (c *fakeController) Runs() []*vmpb.HypervisorID {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]*vmpb.HypervisorID(nil), c.runs...)
}

// Released returns the runs that have released a lease, in order.
func (c *fakeController) Released() []*vmpb.HypervisorID {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]*vmpb.HypervisorID(nil), c.released...)
}

// Reports returns the accepted reports, in order.
func (c *fakeController) Reports() []*vmpb.ReportStateRequest {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]*vmpb.ReportStateRequest(nil), c.reports...)
}

// AwaitReport waits for an accepted report, past or future, and returns the first one that matches. The error is
// that of the context.
func (c *fakeController) AwaitReport(ctx context.Context, fits func(*vmpb.ReportStateRequest) bool) (*vmpb.ReportStateRequest, error) {
	return c.AwaitLaterReport(ctx, 0, fits)
}

// AwaitLaterReport is like AwaitReport, but ignores the given number of reports.
func (c *fakeController) AwaitLaterReport(ctx context.Context, before int, fits func(*vmpb.ReportStateRequest) bool) (*vmpb.ReportStateRequest, error) {
	for {
		c.mu.Lock()
		reports, changed := c.reports[before:], c.changed
		c.mu.Unlock()
		if i := slices.IndexFunc(reports, fits); i >= 0 {
			return reports[i], nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// Refusals returns the number of rejected reports.
func (c *fakeController) Refusals() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refusals
}

// RunLease implements vmpb.VMControllerServer.
func (c *fakeController) RunLease(request *vmpb.RunLeaseRequest, stream grpc.ServerStreamingServer[vmpb.RunLeaseUpdate]) error {
	if request.GetRelease() {
		c.change(func() { c.released = append(c.released, request.GetUs()) })
		return nil
	}
	epoch, err := c.admit(request.GetUs())
	if err != nil {
		return err
	}
	defer c.change(func() { c.open-- })
	var sent *vmpb.RunLeaseUpdate
	for {
		c.mu.Lock()
		response, over, changed := c.responseTo(request.GetUs()), c.epoch != epoch, c.changed
		c.mu.Unlock()
		if over {
			return nil
		}
		if response != nil && !proto.Equal(response, sent) {
			if err := stream.Send(response); err != nil {
				return err
			}
			sent = response
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		}
	}
}

func (c *fakeController) admit(us *vmpb.HypervisorID) (epoch int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refuse != nil {
		return 0, c.refuse
	}
	c.runs = append(c.runs, us)
	c.open++
	c.mostOpen = max(c.mostOpen, c.open)
	return c.epoch, nil
}

// ReportState implements vmpb.VMControllerServer.
func (c *fakeController) ReportState(_ context.Context, request *vmpb.ReportStateRequest) (*vmpb.ReportStateResponse, error) {
	var err error
	c.change(func() {
		switch {
		case c.reportErr != nil:
			err = c.reportErr
			c.refusals++
		case request.GetUs().GetRunId() == 0:
			err = status.Error(codes.InvalidArgument, "the caller has no run ID")
		case len(c.reports) > 0 && overtaken(request, c.reports[len(c.reports)-1]):
		default:
			c.reports = append(c.reports, request)
		}
	})
	if err != nil {
		return nil, err
	}
	return &vmpb.ReportStateResponse{}, nil
}

// overtaken works like its counterpart in the VM controller.
func overtaken(report, last *vmpb.ReportStateRequest) bool {
	return report.GetSequence() < last.GetSequence() && report.GetUs().GetRunId() == last.GetUs().GetRunId()
}
