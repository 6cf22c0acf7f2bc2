package identity

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	identitypb "github.com/millwright-dev/millwright/proto/identity"
)

// callLimit is far longer than any call over loopback takes.
const callLimit = 20 * time.Second

var pod = Peer{Namespace: "pool", VM: "vm-1", Pod: "vm-1-abc"}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func value[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		must(t, err)
		return v
	}
}

// clock is a clock that the test advances.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Date(2030, 6, 1, 12, 0, 0, 0, time.UTC)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// whoami is a service that records its caller, or rejects all callers but one.
type whoami struct {
	healthpb.UnimplementedHealthServer
	only *Peer
	mu   sync.Mutex
	last Peer
}

func (w *whoami) Check(ctx context.Context, _ *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	caller, err := FromContext(ctx)
	if err != nil {
		return nil, err
	}
	if w.only != nil {
		if err := RequireVM(ctx, w.only.Namespace, w.only.VM, w.only.Pod); err != nil {
			return nil, err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = caller
	return &healthpb.HealthCheckResponse{}, nil
}

func (w *whoami) Watch(_ *healthpb.HealthCheckRequest, stream grpc.ServerStreamingServer[healthpb.HealthCheckResponse]) error {
	return stream.Send(&healthpb.HealthCheckResponse{})
}

// serve runs a gRPC server on loopback and returns its address.
func serve(t *testing.T, options []grpc.ServerOption, register func(*grpc.Server)) string {
	t.Helper()
	listener := value[net.Listener](t)(net.Listen("tcp", "127.0.0.1:0"))
	server := grpc.NewServer(options...)
	register(server)
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Errorf("serving: %v", err)
		}
	})
	return listener.Addr().String()
}

// site is a controller that knows some tokens.
type site struct {
	clock     *clock
	authority *Authority
	address   string
	whoami    *whoami

	mu     sync.Mutex
	tokens map[string]Peer
	asked  []string
	hold   chan struct{} // if not nil, a response waits until it is closed
}

func newSite(t *testing.T) *site {
	s := &site{clock: newClock(), whoami: &whoami{}, tokens: map[string]Peer{"token-1": pod}}
	s.authority = value[*Authority](t)(NewAuthority(s.clock.Now()))
	s.address = serve(t, ForController(s.authority, s.clock.Now).ServerOptions(), func(server *grpc.Server) {
		healthpb.RegisterHealthServer(server, s.whoami)
		identitypb.RegisterCertificateAuthorityServer(server, &Issuer{
			Authority: s.authority, Resolve: s.resolve, Now: s.clock.Now,
		})
	})
	return s
}

func (s *site) resolve(_ context.Context, token string) (Peer, error) {
	s.mu.Lock()
	hold := s.hold
	s.asked = append(s.asked, token)
	peer, ok := s.tokens[token]
	s.mu.Unlock()
	if hold != nil {
		<-hold
	}
	if !ok {
		return Peer{}, status.Error(codes.Unauthenticated, "the token is invalid")
	}
	return peer, nil
}

func (s *site) tokensSeen() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.asked...)
}

func writeToken(t *testing.T, token string) string {
	path := filepath.Join(t.TempDir(), "token")
	must(t, os.WriteFile(path, []byte(token+"\n"), 0o600))
	return path
}

// hypervisor returns the credentials of a process with that token.
func (s *site) hypervisor(t *testing.T, tokenFile string) *Credentials {
	t.Helper()
	authority, _ := s.authority.PEM()
	return value[*Credentials](t)(ForHypervisor(Options{
		Authority: authority, TokenFile: tokenFile, Endpoint: s.address, Now: s.clock.Now,
	}))
}

// holding returns credentials with a certificate.
func holding(t *testing.T, authority *Authority, peer Peer, clock *clock) *Credentials {
	t.Helper()
	c := &Credentials{trust: ForController(authority, clock.Now).trust, self: peer.String()}
	c.obtain = func(context.Context) (*tls.Certificate, error) {
		key, request, err := newRequest()
		if err != nil {
			return nil, err
		}
		der, err := authority.Sign(request, peer, Lifetime, clock.Now())
		if err != nil {
			return nil, err
		}
		return withLeaf(der, key)
	}
	return c
}

// check makes one call over a new connection.
func check(t *testing.T, c *Credentials, address string, expected Peer) error {
	t.Helper()
	conn := value[*grpc.ClientConn](t)(c.Dial(address, expected))
	defer func() { must(t, conn.Close()) }()
	return checkOver(t, conn)
}

func checkOver(t *testing.T, conn *grpc.ClientConn) error {
	ctx, cancel := context.WithTimeout(t.Context(), callLimit)
	defer cancel()
	_, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	return err
}

func wantCode(t *testing.T, err error, want codes.Code) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Errorf("got %v (%v), want %v", got, err, want)
	}
}

// Peer returns the identity in the certificate. It requests a certificate if there is none.
func (c *Credentials) Peer(ctx context.Context) (Peer, error) {
	cert, err := c.certificate(ctx)
	if err != nil {
		return Peer{}, err
	}
	return peerOf(cert.Leaf)
}
