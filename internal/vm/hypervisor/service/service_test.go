package service

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/millwright-dev/millwright/internal/unixsocket"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/console"
	"github.com/millwright-dev/millwright/internal/vm/network/dialer"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/flood"
)

const waitTimeout = 2 * time.Minute

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	t.Cleanup(cancel)
	return ctx
}

// guest is a machine's serial port and a reset button that counts.
type guest struct {
	console *console.Console
	port    net.Conn
	resets  atomic.Int32
	refuse  error
	// dial connects to a TCP port. If nil, every port refuses connections.
	dial func(context.Context, uint16) (dialer.Conn, error)
	// display connects to the VNC server. If nil, there is no display.
	display func() (net.Conn, error)
	// picture is the screenshot. If empty, there is no display.
	picture []byte
}

var errNoDisplay = errors.New("the virtual machine has no display")

func newGuest(t *testing.T) *guest {
	ours, port := net.Pipe()
	g := &guest{console: console.New(ours), port: port}
	t.Cleanup(func() { _ = port.Close() })
	return g
}

func (g *guest) Console() *console.Console { return g.console }

func (g *guest) DialGuest(ctx context.Context, port uint16) (dialer.Conn, error) {
	if g.dial == nil {
		return nil, errors.New("connection was refused")
	}
	return g.dial(ctx, port)
}

func (g *guest) DialGuestUDP(uint16, func([]byte)) (dialer.Flow, error) {
	return nil, errors.New("no datagrams")
}

func (g *guest) DialDisplay(context.Context) (net.Conn, error) {
	if g.display == nil {
		return nil, errNoDisplay
	}
	return g.display()
}

func (g *guest) Screenshot(_ context.Context, out io.Writer) error {
	if len(g.picture) == 0 {
		return errNoDisplay
	}
	_, err := out.Write(g.picture)
	return err
}

func (g *guest) Reset(context.Context) error {
	if g.refuse != nil {
		return g.refuse
	}
	g.resets.Add(1)
	return nil
}

// connect returns clients of a server that serves both the socket and the network.
func connect(t *testing.T, s *Server) (local, peer *grpc.ClientConn) {
	t.Helper()
	return dial(t, s.ServeLocal), dial(t, s.ServePeers)
}

func dial(t *testing.T, serve func(net.Listener)) *grpc.ClientConn {
	t.Helper()
	listener := bufconn.Listen(1 << 16)
	serve(listener)
	conn, err := grpc.NewClient("passthrough:///test", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func newServer(t *testing.T, peers Peers) *Server {
	s := New(peers)
	t.Cleanup(s.Stop)
	return s
}

func TestServer_WithoutGuest(t *testing.T) {
	s := newServer(t, Peers{Authorize: func(context.Context, string) error { return nil }})
	local, peer := connect(t, s)
	for _, conn := range []*grpc.ClientConn{local, peer} {
		oob := vmpb.NewOOBManagementClient(conn)
		if _, err := oob.Reset(bounded(t), &vmpb.ResetRequest{}); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("reset without a guest: %v", err)
		}
		stream, err := oob.Console(bounded(t))
		must(t, err)
		if _, err := stream.Recv(); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("console without a guest: %v", err)
		}
		forward, err := oob.Forward(bounded(t))
		must(t, err)
		if _, err := forward.Recv(); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("forwarding without a guest: %v", err)
		}
		display, err := oob.Display(bounded(t))
		must(t, err)
		if _, err := display.Recv(); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("a display without a guest: %v", err)
		}
		screenshot, err := oob.Screenshot(bounded(t), &vmpb.ScreenshotRequest{})
		must(t, err)
		if _, err := screenshot.Recv(); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("a screenshot without a guest: %v", err)
		}
		for _, serving := range []bool{false, true, false} {
			s.SetServing(serving)
			want := map[bool]healthpb.HealthCheckResponse_ServingStatus{true: healthpb.HealthCheckResponse_SERVING, false: healthpb.HealthCheckResponse_NOT_SERVING}[serving]
			for _, name := range []string{"", "metropolis.proto.vm.Hypervisor", "metropolis.proto.vm.OOBManagement"} {
				got, err := healthpb.NewHealthClient(conn).Check(bounded(t), &healthpb.HealthCheckRequest{Service: name})
				if err != nil || got.GetStatus() != want {
					t.Errorf("health of %q: %v, %v; want %s", name, got.GetStatus(), err, want)
				}
			}
		}
	}
}

func TestServer_RejectsMigration(t *testing.T) {
	local, peer := connect(t, newServer(t, Peers{Authorize: func(context.Context, string) error { return nil }}))
	for want, conn := range map[codes.Code]*grpc.ClientConn{codes.Unimplemented: local, codes.FailedPrecondition: peer} {
		_, err := vmpb.NewHypervisorClient(conn).StartMigration(bounded(t), &vmpb.StartMigrationRequest{})
		if status.Code(err) != want {
			t.Errorf("error = %v, want %s", err, want)
		}
	}
}

func TestServer_AuthorizesEachCall(t *testing.T) {
	denied := status.Error(codes.PermissionDenied, "not you")
	for name, authorize := range map[string]func(context.Context, string) error{
		"refused": func(context.Context, string) error { return denied },
		"nobody":  nil,
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, Peers{Authorize: authorize})
			g := newGuest(t)
			s.SetGuest(g)
			local, peer := connect(t, s)
			_, resetErr := vmpb.NewOOBManagementClient(peer).Reset(bounded(t), &vmpb.ResetRequest{})
			stream, err := vmpb.NewOOBManagementClient(peer).Console(bounded(t))
			must(t, err)
			_, consoleErr := stream.Recv()
			_, healthErr := healthpb.NewHealthClient(peer).Check(bounded(t), &healthpb.HealthCheckRequest{})
			forward, err := vmpb.NewOOBManagementClient(peer).Forward(bounded(t))
			must(t, err)
			_, forwardErr := forward.Recv()
			for _, err := range []error{resetErr, consoleErr, forwardErr, healthErr} {
				if status.Code(err) != codes.PermissionDenied {
					t.Errorf("error = %v, want PERMISSION_DENIED", err)
				}
			}
			if _, err := vmpb.NewOOBManagementClient(local).Reset(bounded(t), &vmpb.ResetRequest{}); err != nil || g.resets.Load() != 1 {
				t.Errorf("the socket's owner: %v, %d resets", err, g.resets.Load())
			}
		})
	}
}

func TestPeers_RequireCredentialsAndAuthorization(t *testing.T) {
	allow := func(context.Context, string) error { return nil }
	options := []grpc.ServerOption{grpc.MaxConcurrentStreams(1)}
	for _, p := range []Peers{{Listen: ":0"}, {Listen: ":0", Authorize: allow}, {Listen: ":0", Options: options}} {
		if p.Check() == nil {
			t.Errorf("accepted %+v", p)
		}
	}
	for _, p := range []Peers{{}, {Listen: ":0", Options: options, Authorize: allow}} {
		if err := p.Check(); err != nil {
			t.Error(err)
		}
	}
}

func TestServer_ResetIsIdempotent(t *testing.T) {
	s := newServer(t, Peers{})
	g := newGuest(t)
	s.SetGuest(g)
	local, _ := connect(t, s)
	for i, step := range []struct {
		number uint64
		refuse error
		want   int32
	}{
		{0, nil, 1}, {0, nil, 2},
		{7, nil, 3}, {7, nil, 3},
		{8, io.ErrUnexpectedEOF, 3}, {8, nil, 4}, {8, nil, 4}, // a failed reset was not performed
		{7, nil, 5}, // only the last number is known
		{0, nil, 6}, {7, nil, 6},
	} {
		g.refuse = step.refuse
		_, err := vmpb.NewOOBManagementClient(local).Reset(bounded(t), &vmpb.ResetRequest{IdempotencyCounter: step.number})
		if (err == nil) != (step.refuse == nil) || g.resets.Load() != step.want {
			t.Errorf("step %d: %v, %d resets; want %d", i, err, g.resets.Load(), step.want)
		}
	}
}

// terminal is a client of the console.
type terminal struct {
	t      *testing.T
	stream grpc.BidiStreamingClient[vmpb.ConsoleIO, vmpb.ConsoleIO]
	seen   bytes.Buffer
}

func open(t *testing.T, conn *grpc.ClientConn) *terminal {
	t.Helper()
	stream, err := vmpb.NewOOBManagementClient(conn).Console(bounded(t))
	must(t, err)
	return &terminal{t: t, stream: stream}
}

// until reads until the text was received, or returns the error of the stream.
func (c *terminal) until(text string) error {
	for !strings.Contains(c.seen.String(), text) {
		message, err := c.stream.Recv()
		if err != nil {
			return err
		}
		c.seen.Write(message.GetData())
	}
	return nil
}

func (c *terminal) send(text string) {
	c.t.Helper()
	must(c.t, c.stream.Send(&vmpb.ConsoleIO{Data: []byte(text)}))
}

func TestConsole_CarriesEveryByteBothWays(t *testing.T) {
	s := newServer(t, Peers{})
	g := newGuest(t)
	s.SetGuest(g)
	local, _ := connect(t, s)
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	_, err := g.port.Write(every)
	must(t, err)
	late := open(t, local) // receives the history
	must(t, late.until(string(every)))

	late.send("") // has no effect
	late.send(string(every))
	must(t, late.stream.CloseSend())
	got := make([]byte, 256)
	must(t, g.port.SetDeadline(time.Now().Add(waitTimeout)))
	_, err = io.ReadFull(g.port, got)
	if err != nil || !bytes.Equal(got, every) {
		t.Errorf("the guest got %q, %v", got, err)
	}
	// A client that has closed its side still receives output.
	_, err = g.port.Write([]byte("more"))
	must(t, err)
	must(t, late.until("more"))
	// It also receives the end of the stream, after the last output.
	_, err = g.port.Write([]byte("last output"))
	must(t, err)
	must(t, g.port.Close())
	must(t, late.until("last output"))
	if err := late.until("never printed"); status.Code(err) != codes.Unavailable {
		t.Errorf("error at the end = %v, want UNAVAILABLE", err)
	}
}

func TestConsole_MessagesAreNotInterleaved(t *testing.T) {
	s := newServer(t, Peers{})
	g := newGuest(t)
	s.SetGuest(g)
	local, _ := connect(t, s)
	const each, size = 20, 1000
	for _, letter := range []string{"a", "b", "c"} {
		client := open(t, local)
		go func() {
			for range each {
				_ = client.stream.Send(&vmpb.ConsoleIO{Data: []byte(strings.Repeat(letter, size))})
			}
		}()
	}
	got := make([]byte, 3*each*size)
	must(t, g.port.SetDeadline(time.Now().Add(waitTimeout)))
	_, err := io.ReadFull(g.port, got)
	must(t, err)
	for i := 0; i < len(got); i += size {
		if want := bytes.Repeat(got[i:i+1], size); !bytes.Equal(got[i:i+size], want) {
			t.Fatalf("message %d is interleaved", i/size)
		}
	}
}

// Two clients read, and one does not. It is disconnected, and the others receive everything.
func TestConsole_SlowClientIsDisconnected(t *testing.T) {
	s := newServer(t, Peers{})
	g := newGuest(t)
	s.SetGuest(g)
	local, _ := connect(t, s)
	// The clients have separate connections, like three programs. The slow client has a small buffer.
	slow := open(t, dial(t, s.ServeLocal))
	must(t, func() error { _, err := g.port.Write([]byte("hello")); return err }())
	must(t, slow.until("hello"))
	quick := []*terminal{open(t, local), open(t, dial(t, s.ServeLocal))}
	const chunk, chunks = 16 << 10, 64
	for i := range chunks {
		mark := strings.Repeat(string(rune('!'+i)), chunk)
		_, err := g.port.Write([]byte(mark))
		must(t, err)
		for _, client := range quick {
			must(t, client.until(mark))
		}
	}
	if err := slow.until("never printed"); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("error of the slow client = %v, want RESOURCE_EXHAUSTED", err)
	}
	if got := slow.seen.Len(); got >= chunk*chunks {
		t.Errorf("the slow client got %d bytes, which is everything", got)
	}
}

// A client that never reads again is disconnected, too: nothing in the server waits for it.
func TestConsole_ClientThatNeverReadsIsDisconnected(t *testing.T) {
	ended := make(chan error, 1)
	s := newServer(t, Peers{
		Authorize: func(context.Context, string) error { return nil },
		Options: []grpc.ServerOption{grpc.ChainStreamInterceptor(
			func(service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
				err := next(service, stream)
				ended <- err
				return err
			})},
	})
	g := newGuest(t)
	s.SetGuest(g)
	_, peer := connect(t, s)
	stuck := open(t, peer)
	must(t, func() error { _, err := g.port.Write([]byte("hello")); return err }())
	must(t, stuck.until("hello"))
	// A client that reads determines the pace, so that the stuck client is stuck in the middle of a message. The
	// total is far more than all buffers can hold.
	local := dial(t, s.ServeLocal)
	quick := open(t, local)
	for i := range 64 {
		mark := strings.Repeat(string(rune('!'+i)), 16<<10)
		_, err := g.port.Write([]byte(mark))
		must(t, err)
		must(t, quick.until(mark))
	}
	select {
	case err := <-ended:
		if status.Code(err) != codes.ResourceExhausted {
			t.Errorf("error = %v, want RESOURCE_EXHAUSTED", err)
		}
	case <-time.After(waitTimeout):
		t.Error("the server waits for a client that does not read")
	}
}

func TestSocket_IsPrivateWithAnyPathLength(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 50))
	must(t, os.MkdirAll(dir, 0o755))
	path := filepath.Join(dir, "vm.sock")
	must(t, os.WriteFile(path, []byte("from an earlier process"), 0o644))
	for range 2 { // the second server finds the first server's socket
		listener, err := unixsocket.Listen(path)
		must(t, err)
		info, err := os.Stat(path)
		must(t, err)
		if want := os.ModeSocket | 0o600; info.Mode() != want {
			t.Errorf("mode = %v, want %v", info.Mode(), want)
		}
		s := New(Peers{})
		s.ServeLocal(listener)
		conn, err := DialSocket(path)
		must(t, err)
		_, err = healthpb.NewHealthClient(conn).Check(bounded(t), &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true))
		must(t, err)
		must(t, conn.Close())
		s.Stop()
	}
}

func TestSocket_NeedsDirectory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "nothing", "vm.sock")
	if _, err := unixsocket.Listen(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("listening: %v", err)
	}
	if _, err := DialSocket(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("dialling: %v", err)
	}
}

func TestSocket_IsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "vm.sock")
	listener, err := unixsocket.Listen(path)
	must(t, err)
	must(t, listener.Close())
	conn, err := DialSocket(path)
	must(t, err)
	defer func() { _ = conn.Close() }()
	if _, err := healthpb.NewHealthClient(conn).Check(bounded(t), &healthpb.HealthCheckRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("calling: %v", err)
	}
}

// Clients that connect but send nothing exhaust neither the port nor the file descriptors of the process.
func TestServer_IdleClientsDoNotBlock(t *testing.T) {
	s := newServer(t, Peers{Authorize: func(context.Context, string) error { return nil }})
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	must(t, err)
	s.ServePeers(listener)
	flood.Past(t, listener.Addr().String(), maxAnonymous)
	peer, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	t.Cleanup(func() { _ = peer.Close() })
	if _, err := healthpb.NewHealthClient(peer).Check(bounded(t), &healthpb.HealthCheckRequest{}); err != nil {
		t.Errorf("another address: %v", err)
	}
}

// arriving is a migration that does not arrive, with connections of the former hypervisor.
type arriving struct{ Incoming }

var errCarried = errors.New("carried")

// CarryConnections implements Moved.
func (arriving) CarryConnections(grpc.BidiStreamingServer[vmpb.GuestPacket, vmpb.GuestPacket]) error {
	return errCarried
}

// TestServer_CarriesConnectionsOfReceivedGuest checks that a hypervisor refuses the connections of another one for good unless
// it receives a guest.
func TestServer_CarriesConnectionsOfReceivedGuest(t *testing.T) {
	s := New(Peers{})
	defer s.Stop()
	want := func(code codes.Code) {
		t.Helper()
		if got := status.Code(s.CarryConnections(nil)); got != code {
			t.Errorf("got code %s, want %s", got, code)
		}
	}
	want(codes.NotFound)
	s.SetIncoming(arriving{})
	want(codes.FailedPrecondition)
	s.SetMoved(arriving{})
	s.SetIncoming(nil)
	if err := s.CarryConnections(nil); !errors.Is(err, errCarried) {
		t.Errorf("got %v", err)
	}
}
