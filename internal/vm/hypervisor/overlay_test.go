package hypervisor_test

import (
	"context"
	"net/netip"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor"
	"github.com/millwright-dev/millwright/internal/vm/network/overlay"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	overlaypb "github.com/millwright-dev/millwright/proto/overlay"
)

// fakeOverlay records the calls of hypervisors.
type fakeOverlay struct {
	overlaypb.UnimplementedOverlayServer
	joined chan *overlaypb.JoinRequest
	left   chan *overlaypb.LeaveRequest
}

func (o *fakeOverlay) Join(request *overlaypb.JoinRequest, out grpc.ServerStreamingServer[overlaypb.Update]) error {
	o.joined <- request
	<-out.Context().Done()
	return out.Context().Err()
}

func (o *fakeOverlay) Leave(_ context.Context, request *overlaypb.LeaveRequest) (*overlaypb.LeaveResponse, error) {
	o.left <- request
	return &overlaypb.LeaveResponse{}, nil
}

// runWithOverlay runs a hypervisor with a real socket of the overlay, which does not work in a bubble of synctest. The
// returned function terminates it.
func runWithOverlay(t *testing.T, controller *fakeController, machines *fakeMachines, listen string) (end func() vmpb.Termination) {
	t.Helper()
	dir := t.TempDir()
	config := hypervisor.Config{
		Spec:     validSpec(),
		Paths:    hypervisor.Paths{RootDisk: filepath.Join(dir, "disk.img"), Run: filepath.Join(dir, "run")},
		Machines: machines, Connect: controller.Connect,
		Network: []netip.Prefix{netip.MustParsePrefix("10.77.0.0/16")},
		Overlay: &overlay.Config{Listen: netip.MustParseAddrPort(listen)},
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan vmpb.Termination, 1)
	go func() { ended <- hypervisor.RunOn(ctx, config, bufconn.Listen(1<<16)) }()
	return func() vmpb.Termination {
		cancel()
		return <-ended
	}
}

// TestOverlay_HypervisorJoinsAndLeaves checks that a hypervisor announces its endpoint before the guest is started, and
// leaves when the guest has terminated.
func TestOverlay_HypervisorJoinsAndLeaves(t *testing.T) {
	runs := make(chan struct{}, 1)
	controller, machines := newFakeController(), &fakeMachines{Continued: func(context.Context) { runs <- struct{}{} }}
	t.Cleanup(controller.Close)
	end := runWithOverlay(t, controller, machines, "127.0.0.1:0")
	request := <-controller.overlay.joined
	us := request.GetUs()
	if us.GetNamespace() != "default" || us.GetVmName() != "web" || us.GetPodName() != "web-1" || us.GetRunId() == 0 || len(request.GetPublicKey()) != 32 {
		t.Errorf("joined with %v", request)
	}
	if endpoint, err := netip.ParseAddrPort(request.GetEndpoint()); err != nil || !endpoint.Addr().IsLoopback() || endpoint.Port() == 0 {
		t.Errorf("the endpoint is %q", request.GetEndpoint())
	}
	<-runs
	end()
	if left := <-controller.overlay.left; left.GetUs().GetRunId() != us.GetRunId() {
		t.Errorf("%v has left", left)
	}
	for _, machine := range machines.Started() {
		if machine.Config.Network.Overlay == nil {
			t.Error("the guest is not connected to the overlay")
		}
	}
}

// TestOverlay_PortIsTaken checks that another hypervisor with the same address gets another port.
func TestOverlay_PortIsTaken(t *testing.T) {
	taken, err := overlay.New(overlay.Config{Listen: netip.MustParseAddrPort("127.0.0.1:0")})
	must(t, err)
	t.Cleanup(taken.Close)
	controller := newFakeController()
	t.Cleanup(controller.Close)
	end := runWithOverlay(t, controller, &fakeMachines{}, taken.Address().String())
	if got := (<-controller.overlay.joined).GetEndpoint(); got == taken.Address().String() {
		t.Errorf("the endpoint is that of another process, %s", got)
	}
	end()
}
