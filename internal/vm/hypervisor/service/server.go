// Package service serves a hypervisor's gRPC API: on a unix socket to local users, and on the network to its peers.
package service

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/millwright-dev/millwright/internal/connlimit"
	"github.com/millwright-dev/millwright/internal/vm/identity"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// Limits of peer connections in their handshake, and how long a handshake may take: anyone on the network can open
// connections.
const (
	maxAnonymous           = 256
	maxAnonymousPerAddress = 64
	handshakeTime          = 10 * time.Second
)

// farewell is how long streams may take to end before they are aborted.
const farewell = time.Second

// Peers configures the services on the network.
type Peers struct {
	// Listen is the address to listen on, host:port. Port 0 selects a free port. If empty, the network is not served.
	Listen string
	// Options are the options of the server; they must require certificates. Required with Listen. Clients must
	// become connlimit.Known once they have authenticated.
	Options []grpc.ServerOption
	// Authorize returns nil if the caller may call the method, such as "/metropolis.proto.vm.OOBManagement/Reset",
	// and otherwise the gRPC status for the caller. Required with Listen.
	Authorize func(ctx context.Context, method string) error
}

// Check returns an error if the network would be served without authentication or authorization.
func (p Peers) Check() error {
	if p.Listen != "" && (p.Authorize == nil || len(p.Options) == 0) {
		return errors.New("the network cannot be served without credentials and authorization")
	}
	return nil
}

// Server serves OOBManagement and grpc.health.v1, and to peers also Hypervisor. It may serve before there is a guest.
type Server struct {
	*oob
	*migration
	health *health.Server
	local  *grpc.Server
	peers  *grpc.Server
}

// New returns a server without listeners. It must be stopped.
func New(peers Peers) *Server {
	s := &Server{oob: &oob{}, migration: &migration{}, health: health.NewServer()}
	s.SetServing(false)
	s.local = grpc.NewServer(keptAlive()...)
	s.register(s.local)
	authorize := peers.Authorize
	if authorize == nil {
		authorize = func(context.Context, string) error {
			return status.Error(codes.PermissionDenied, "no one may call this hypervisor")
		}
	}
	s.peers = grpc.NewServer(slices.Concat(keptAlive(), identity.Intercept(authorize), peers.Options, []grpc.ServerOption{grpc.ConnectionTimeout(handshakeTime)})...)
	s.register(s.peers)
	vmpb.RegisterHypervisorServer(s.peers, s.migration)
	return s
}

func (s *Server) register(server *grpc.Server) {
	vmpb.RegisterOOBManagementServer(server, s.oob)
	healthpb.RegisterHealthServer(server, s.health)
}

// keptAlive detects broken connections: a console may be idle for days.
func keptAlive() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Minute, Timeout: 20 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
	}
}

// ServeLocal serves all clients of the listener until Stop.
func (s *Server) ServeLocal(listener net.Listener) { go func() { _ = s.local.Serve(listener) }() }

// ServePeers serves authorized clients until Stop.
func (s *Server) ServePeers(listener net.Listener) {
	bounded := connlimit.Listen(listener, maxAnonymous, maxAnonymousPerAddress)
	go func() { _ = s.peers.Serve(bounded) }()
}

// SetServing sets the status of all services in the health service: whether the guest runs.
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

// Stop ends all streams. Clients of a console whose machine has terminated get the last output first, if they read
// it.
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

// ListenSocket listens on a unix socket with mode 0600. It replaces the socket of an earlier process. The path may
// have any length. The socket's file remains after Close.
func ListenSocket(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("removing an old socket: %w", err)
	}
	var listener net.Listener
	err := atShortPath(path, func(short string) error {
		// A socket's file gets the mode that the socket has when it is bound.
		private := net.ListenConfig{Control: func(_, _ string, socket syscall.RawConn) error {
			var failure error
			err := socket.Control(func(fd uintptr) { failure = unix.Fchmod(int(fd), 0o600) })
			return errors.Join(err, failure)
		}}
		var err error
		listener, err = private.Listen(context.Background(), "unix", short)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", path, err)
	}
	// The short path refers to another file by the time of Close.
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	return listener, nil
}

// DialSocket returns a connection to OOBManagement and grpc.health.v1 on a unix socket. The path may have any length.
// It does not connect before the first call. Errors: fs.ErrNotExist if there is no socket.
func DialSocket(path string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("checking the socket: %w", err)
	}
	options = append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()), // the file's mode protects it
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			var conn net.Conn
			err := atShortPath(path, func(short string) error {
				var err error
				conn, err = new(net.Dialer).DialContext(ctx, "unix", short)
				return err
			})
			return conn, err
		}),
	}, options...)
	return grpc.NewClient("passthrough:///hypervisor", options...)
}

// atShortPath calls a function with a short path of the same file, since the address of a unix socket is limited to
// 107 bytes. The path is valid during the call.
func atShortPath(path string, do func(short string) error) error {
	folder, err := os.OpenFile(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer func() { _ = folder.Close() }()
	return do(fmt.Sprintf("/proc/self/fd/%d/%s", folder.Fd(), filepath.Base(path)))
}
