package departure

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/handover"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/negotiation"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// sharedDisk is a machine whose disk is not copied.
var sharedDisk = negotiation.Machine{Hardware: "pc", SharedDisk: true}

// target accepts every migration of sharedDisk.
type target struct {
	vmpb.UnimplementedHypervisorServer
}

func (target) StartMigration(_ context.Context, request *vmpb.StartMigrationRequest) (*vmpb.StartMigrationResponse, error) {
	chosen, err := negotiation.Choose(request.GetSupportedMigrationProtocol(), sharedDisk)
	if err == nil {
		chosen.GetQemuNbd().NegotiatedEndpoint = "tcp:target:1"
	}
	return &vmpb.StartMigrationResponse{MigrationProtocol: chosen}, err
}

// slowSiblings connects to a target that rejects the first connections, because it is not listening yet.
type slowSiblings struct {
	Siblings
	listener *bufconn.Listener
	refuse   int32
	attempts atomic.Int32
}

func (s *slowSiblings) Dial(string, string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///target",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: time.Millisecond, Multiplier: 1, MaxDelay: time.Millisecond}}),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			if s.attempts.Add(1) <= s.refuse {
				return nil, errors.New("connection refused")
			}
			return s.listener.DialContext(ctx)
		}))
}

func TestDeparture_NegotiationWaitsForTargetToListen(t *testing.T) {
	listener := bufconn.Listen(1 << 16)
	server := grpc.NewServer()
	vmpb.RegisterHypervisorServer(server, target{})
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)

	d, _ := newDeparture(t, &script{})
	siblings := &slowSiblings{listener: listener, refuse: 3}
	d.Siblings, d.Describe = siblings, func() (negotiation.Machine, error) { return sharedDisk, nil }
	reach(d, handover.Ordered, handover.TargetFound)
	d.begin(d.negotiate)
	result := <-d.Results()
	if result.event != handover.Agreed || siblings.attempts.Load() <= siblings.refuse {
		t.Errorf("event = %q after %d connection attempts, want %q after more than %d", result.event, siblings.attempts.Load(), handover.Agreed, siblings.refuse)
	}
	if got := d.attempt.agreed.GetNegotiatedEndpoint(); got != "tcp:target:1" {
		t.Errorf("agreed endpoint = %q", got)
	}
}
