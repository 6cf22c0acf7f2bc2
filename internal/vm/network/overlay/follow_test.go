package overlay

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	overlaypb "github.com/millwright-dev/millwright/proto/overlay"
)

// controller is a VM controller that sends updates from a channel. An empty update closes the stream.
type controller struct {
	overlaypb.UnimplementedOverlayServer
	silent  chan *overlaypb.ReportSilentRequest
	joined  chan *overlaypb.JoinRequest
	left    chan *overlaypb.LeaveRequest
	updates chan *overlaypb.Update
}

var errClosed = errors.New("the stream is closed by the test")

func (c *controller) Join(request *overlaypb.JoinRequest, out grpc.ServerStreamingServer[overlaypb.Update]) error {
	c.joined <- request
	for {
		select {
		case update := <-c.updates:
			if update == nil {
				return errClosed
			}
			if err := out.Send(update); err != nil {
				return err
			}
		case <-out.Context().Done():
			return out.Context().Err()
		}
	}
}

func (c *controller) ReportSilent(_ context.Context, request *overlaypb.ReportSilentRequest) (*overlaypb.ReportSilentResponse, error) {
	c.silent <- request
	return &overlaypb.ReportSilentResponse{}, nil
}

func (c *controller) Leave(_ context.Context, request *overlaypb.LeaveRequest) (*overlaypb.LeaveResponse, error) {
	c.left <- request
	return &overlaypb.LeaveResponse{}, nil
}

// serve serves a controller and returns a connection to it.
func serve(t *testing.T, c overlaypb.OverlayServer) *grpc.ClientConn {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	overlaypb.RegisterOverlayServer(server, c)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// peerOf returns the message about the guest.
func (h *host) peerOf() *overlaypb.Peer {
	m := h.member()
	return &overlaypb.Peer{
		Vm: m.VM, State: overlaypb.Peer_STATE_PRESENT, PublicKey: m.Key[:], Endpoint: m.Endpoint.String(),
		Addresses: []string{m.Addresses[0].String(), m.Addresses[1].String()},
	}
}

// TestEndpoint_Follows checks that a hypervisor announces its endpoint, applies updates, joins again when the stream was
// closed, and keeps what it has until then.
func TestEndpoint_Follows(t *testing.T) {
	all := hosts(t, MaxMTU, 2)
	a, b := all[0], all[1]
	a.Apply(Update{Snapshot: true})
	c := &controller{silent: make(chan *overlaypb.ReportSilentRequest), joined: make(chan *overlaypb.JoinRequest), left: make(chan *overlaypb.LeaveRequest, 1), updates: make(chan *overlaypb.Update)}
	conn := serve(t, c)
	us := &overlaypb.Process{Namespace: "default", VmName: "vm-10", PodName: "vm-10-x", RunId: 3}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); a.Follow(ctx, conn, us) }()

	request := <-c.joined
	if key := a.Key(); string(request.GetPublicKey()) != string(key[:]) || request.GetEndpoint() != a.Address().String() || request.GetUs().GetRunId() != 3 {
		t.Errorf("joined with %v", request)
	}
	c.updates <- &overlaypb.Update{Snapshot: true, Peers: []*overlaypb.Peer{b.peerOf(), {Vm: "default/invalid", State: overlaypb.Peer_STATE_PRESENT}, {Vm: "default/new-state", State: 99}}}
	c.updates <- nil
	<-c.joined // all updates have been applied
	a.sendsTo(b, 1)
	b.receivesFirst(t, 1)
	c.updates <- &overlaypb.Update{Snapshot: true, Peers: []*overlaypb.Peer{{Vm: b.port.VM, State: overlaypb.Peer_STATE_UNCHANGED}}}
	c.updates <- nil
	<-c.joined
	a.sendsTo(b, 2)
	b.receivesFirst(t, 2)
	a.holder(b.port.IPv4).attempts.Store(maxAttempts)
	a.prune()
	if request := <-c.silent; len(request.GetVms()) != 1 || request.GetVms()[0] != b.port.VM {
		t.Errorf("%v is reported", request)
	}
	c.updates <- &overlaypb.Update{Peers: []*overlaypb.Peer{{Vm: b.port.VM, State: overlaypb.Peer_STATE_ABSENT}}}
	if request := <-c.silent; len(request.GetVms()) != 0 {
		t.Errorf("%v is reported although it is gone", request)
	}
	c.updates <- nil
	<-c.joined
	if a.holder(b.port.IPv4) != nil {
		t.Error("a VM that is gone has a location")
	}
	cancel()
	<-ended
	if err := Leave(t.Context(), conn, us); err != nil {
		t.Fatal(err)
	}
	if left := <-c.left; left.GetUs().GetPodName() != "vm-10-x" {
		t.Errorf("%v has left", left)
	}
}

func TestMemberOf_RefusesInvalidPeers(t *testing.T) {
	valid := func() *overlaypb.Peer {
		return &overlaypb.Peer{Vm: "a/b", PublicKey: make([]byte, 32), Endpoint: "10.0.0.1:8462", Addresses: []string{"10.77.0.1"}}
	}
	for name, change := range map[string]func(*overlaypb.Peer){
		"a short key":                            func(p *overlaypb.Peer) { p.PublicKey = p.PublicKey[1:] },
		"a long key":                             func(p *overlaypb.Peer) { p.PublicKey = append(p.PublicKey, 0) },
		"no port":                                func(p *overlaypb.Peer) { p.Endpoint = "10.0.0.1" },
		"a name":                                 func(p *overlaypb.Peer) { p.Endpoint = "example.com:1" },
		"a network":                              func(p *overlaypb.Peer) { p.Addresses = []string{"10.77.0.0/16"} },
		"a setting of WireGuard in an address":   func(p *overlaypb.Peer) { p.Addresses = []string{"fd77::1%x/128\nallowed_ip=::/0\na="} },
		"a setting of WireGuard in the endpoint": func(p *overlaypb.Peer) { p.Endpoint = "[fd00::1%x]:1\nallowed_ip=::/0\na=]:1" },
	} {
		t.Run(name, func(t *testing.T) {
			peer := valid()
			change(peer)
			if m, err := memberOf(peer); err == nil {
				t.Errorf("accepted as %v", m)
			}
		})
	}
	if m, err := memberOf(valid()); err != nil || m.Addresses[0] != netip.MustParseAddr("10.77.0.1") {
		t.Errorf("%v, %v", m, err)
	}
}
