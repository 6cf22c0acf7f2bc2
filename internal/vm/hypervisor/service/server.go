// Package service serves a hypervisor's gRPC API: on a unix socket to local users, and on
// the network to its peers.
package service

import (
	"context"
	"errors"
	"net"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/millwright-dev/millwright/internal/vm/identity"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// farewell is how long streams may take to end by themselves.
const farewell = time.Second

// Peers configures the services on the network.
type Peers struct {
	// Listen is the address to listen on, host:port. Port 0 is any free one. Empty: the
	// network is not served.
	Listen string
	// Options of the server; they must require certificates. Required with Listen.
	Options []grpc.ServerOption
	// Authorize returns nil if the caller may call the method, such as
	// "/metropolis.proto.vm.OOBManagement/Reset", else the gRPC status for the caller.
	// Required with Listen.
	Authorize func(ctx context.Context, method string) error
}

// Check returns an error if the network would be served without protection.
func (p Peers) Check() error {
	if p.Listen != "" && (p.Authorize == nil || len(p.Options) == 0) {
		return errors.New("the network cannot be served without credentials and authorization")
	}
	return nil
}

// Server serves OOBManagement and grpc.health.v1, and to peers also Hypervisor. It may serve
// before there is a guest.
type Server struct {
	*oob
	health *health.Server
	local  *grpc.Server
	peers  *grpc.Server
}

// New returns a server without listeners. It must be stopped.
func New(peers Peers) *Server {
	s := &Server{oob: &oob{}, health: health.NewServer()}
	s.SetServing(false)
	s.local = grpc.NewServer(keptAlive()...)
	s.register(s.local)
	authorize := peers.Authorize
	if authorize == nil {
		authorize = func(context.Context, string) error {
			return status.Error(codes.PermissionDenied, "nobody may call this hypervisor")
		}
	}
	s.peers = grpc.NewServer(slices.Concat(keptAlive(), identity.Intercept(authorize), peers.Options)...)
	s.register(s.peers)
	vmpb.RegisterHypervisorServer(s.peers, migration{})
	return s
}

func (s *Server) register(server *grpc.Server) {
	vmpb.RegisterOOBManagementServer(server, s.oob)
	healthpb.RegisterHealthServer(server, s.health)
}

// keptAlive detects broken connections: a console may be silent for days.
func keptAlive() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Minute, Timeout: 20 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
	}
}

// ServeLocal serves all clients of the listener, until Stop.
func (s *Server) ServeLocal(listener net.Listener) { go func() { _ = s.local.Serve(listener) }() }

// ServePeers serves authorized clients, until Stop.
func (s *Server) ServePeers(listener net.Listener) { go func() { _ = s.peers.Serve(listener) }() }

// SetServing sets the answer of the health service for all services: whether the guest runs.
func (s *Server) SetServing(serving bool) {
	answer := healthpb.HealthCheckResponse_NOT_SERVING
	if serving {
		answer = healthpb.HealthCheckResponse_SERVING
	}
	for _, name := range []string{
		"", vmpb.OOBManagement_ServiceDesc.ServiceName, vmpb.Hypervisor_ServiceDesc.ServiceName,
	} {
		s.health.SetServingStatus(name, answer)
	}
}

// Stop ends all streams. Clients of a console whose machine has ended get the last output
// first, if they read it.
func (s *Server) Stop() {
	s.health.Shutdown()
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		s.local.GracefulStop()
		s.peers.GracefulStop()
	}()
	select {
	case <-gone:
	case <-time.After(farewell):
	}
	s.local.Stop()
	s.peers.Stop()
	<-gone
}
