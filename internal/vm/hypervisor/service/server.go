package service

import (
	"context"
	"errors"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// farewell is how long streams have to end by themselves.
const farewell = time.Second

// Peers is how others reach the services over the network.
type Peers struct {
	// Listen is the address to listen on, host:port. Port 0 is any free one. Empty:
	// the network is not served.
	Listen string
	// Options are for the server; they must demand certificates. Required with Listen.
	Options []grpc.ServerOption
	// Authorize says who may call a method, such as
	// "/metropolis.proto.vm.OOBManagement/Reset". Its error, best one with a status,
	// is what the caller gets. Required with Listen.
	Authorize func(ctx context.Context, method string) error
}

// Check refuses to serve the network without protection.
func (p Peers) Check() error {
	if p.Listen != "" && (p.Authorize == nil || len(p.Options) == 0) {
		return errors.New("the network cannot be served without credentials and authorization")
	}
	return nil
}

// Server serves OOBManagement and grpc.health.v1, and to peers Hypervisor as well. It
// may begin before there is a guest.
type Server struct {
	*oob
	health *health.Server
	local  *grpc.Server
	peers  *grpc.Server
}

// New makes a server that serves nobody yet. It must be stopped.
func New(peers Peers) *Server {
	s := &Server{oob: &oob{}, health: health.NewServer()}
	s.SetServing(false)
	s.local = grpc.NewServer(keptAlive()...)
	s.register(s.local)
	s.peers = grpc.NewServer(append(append(keptAlive(), authorized(peers.Authorize)...), peers.Options...)...)
	s.register(s.peers)
	vmpb.RegisterHypervisorServer(s.peers, migration{})
	return s
}

func (s *Server) register(server *grpc.Server) {
	vmpb.RegisterOOBManagementServer(server, s.oob)
	healthpb.RegisterHealthServer(server, s.health)
}

// keptAlive notices clients that are gone: a console may be silent for days.
func keptAlive() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Minute, Timeout: 20 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
	}
}

// authorized asks before each call. Nil allows nobody.
func authorized(authorize func(context.Context, string) error) []grpc.ServerOption {
	if authorize == nil {
		authorize = func(context.Context, string) error { return errNobody }
	}
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			if err := authorize(ctx, info.FullMethod); err != nil {
				return nil, err
			}
			return next(ctx, request)
		}),
		grpc.ChainStreamInterceptor(func(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			if err := authorize(stream.Context(), info.FullMethod); err != nil {
				return err
			}
			return next(service, stream)
		}),
	}
}

// ServeLocal serves whoever can connect to the listener, until Stop.
func (s *Server) ServeLocal(listener net.Listener) { go func() { _ = s.local.Serve(listener) }() }

// ServePeers serves those that are authorized, until Stop.
func (s *Server) ServePeers(listener net.Listener) { go func() { _ = s.peers.Serve(listener) }() }

// SetServing is the answer of the health service, for each service that there is: does
// the guest run here?
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

// Stop ends all streams. Those of a console whose machine is gone get its last output
// first, if they read.
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
