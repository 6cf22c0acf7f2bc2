// Package service serves a hypervisor's gRPC API on a Unix socket to local users and on the network to peers.
package service

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/millwright-dev/millwright/internal/connlimit"
	"github.com/millwright-dev/millwright/internal/unixsocket"
	"github.com/millwright-dev/millwright/internal/vm/identity"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// maxAnonymous limits peer connections that are still in their handshake. Anyone on the network can open such
// connections.
const maxAnonymous = 256

// stopTimeout is how long streams may take to complete before they are aborted.
const stopTimeout = time.Second

// Peers configures the services on the network.
type Peers struct {
	// Listen is the address to listen on, in the form host:port. Port 0 selects a free port. If empty, the network
	// is not served.
	Listen string
	// Options are the options of the server, which must require certificates. Required with Listen. Clients must
	// be marked with connlimit.Known once they have authenticated.
	Options []grpc.ServerOption
	// Authorize returns nil if the caller may call the method, such as "/metropolis.proto.vm.OOBManagement/Reset".
	// Otherwise it returns the gRPC status for the caller. Required with Listen.
	Authorize func(ctx context.Context, method string) error
}

// Check returns an error if the network would be served without authentication or authorization.
func (p Peers) Check() error {
	if p.Listen != "" && (p.Authorize == nil || len(p.Options) == 0) {
		return errors.New("serving the network requires credentials and authorization")
	}
	return nil
}

// Server serves OOBManagement and grpc.health.v1. To peers it also serves Hypervisor. It may serve before there is
// a guest.
type Server struct {
	*oob
	*migration
	health *health.Server
	local  *grpc.Server
	peers  *grpc.Server
}

// New returns a server without listeners. The caller must stop it.
func New(peers Peers) *Server {
	s := &Server{oob: &oob{limits: defaultViewerLimits}, migration: &migration{}, health: health.NewServer()}
	s.SetServing(false)
	s.local = grpc.NewServer(keepaliveOptions()...)
	s.register(s.local)
	authorize := peers.Authorize
	if authorize == nil {
		authorize = func(context.Context, string) error {
			return status.Error(codes.PermissionDenied, "no one may call this hypervisor")
		}
	}
	s.peers = grpc.NewServer(slices.Concat(keepaliveOptions(), identity.Intercept(authorize), peers.Options, []grpc.ServerOption{grpc.ConnectionTimeout(connlimit.HandshakeTimeout)})...)
	s.register(s.peers)
	vmpb.RegisterHypervisorServer(s.peers, s.migration)
	return s
}

func (s *Server) register(server *grpc.Server) {
	vmpb.RegisterOOBManagementServer(server, s.oob)
	healthpb.RegisterHealthServer(server, s.health)
}

// keepaliveOptions returns server options that detect broken connections, because a console may be idle for days.
func keepaliveOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Minute, Timeout: 20 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
	}
}

// ServeLocal serves all clients of the listener until Stop is called.
func (s *Server) ServeLocal(listener net.Listener) { go func() { _ = s.local.Serve(listener) }() }

// ServePeers serves authorized clients until Stop is called.
func (s *Server) ServePeers(listener net.Listener) {
	bounded := connlimit.Listen(listener, maxAnonymous)
	go func() { _ = s.peers.Serve(bounded) }()
}

// SetServing sets the status of all services in the health service. It reports whether the guest runs.
func (s *Server) SetServing(serving bool) {
	servingStatus := healthpb.HealthCheckResponse_NOT_SERVING
	if serving {
		servingStatus = healthpb.HealthCheckResponse_SERVING
	}
	for _, name := range []string{
		"", vmpb.OOBManagement_ServiceDesc.ServiceName, vmpb.Hypervisor_ServiceDesc.ServiceName,
	} {
		s.health.SetServingStatus(name, servingStatus)
	}
}

// Stop closes all streams. Clients of a console whose machine has terminated receive the last output first, if
// they read it.
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
	case <-time.After(stopTimeout):
	}
	s.local.Stop()
	s.peers.Stop()
	<-gone
}

// DialSocket returns a connection to OOBManagement and grpc.health.v1 on a Unix socket. The path may have any
// length. It connects with the first call. DialSocket returns fs.ErrNotExist if there is no socket.
func DialSocket(path string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("checking the socket: %w", err)
	}
	options = append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()), // the file's mode protects it
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return unixsocket.Dial(ctx, path) }),
	}, options...)
	return grpc.NewClient("passthrough:///hypervisor", options...)
}
