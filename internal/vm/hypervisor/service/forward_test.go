package service

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millwright-dev/millwright/internal/vm/network/dialer"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// forward opens a stream to a guest that handles a connection to port 80.
func forward(t *testing.T, handle func(*net.TCPConn)) grpc.BidiStreamingClient[vmpb.ForwardIO, vmpb.ForwardIO] {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { listener.Close() })
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return // the test has failed
		}
		defer conn.Close()
		handle(conn.(*net.TCPConn))
	}()
	s, g := newServer(t, Peers{}), newGuest(t)
	g.dial = func(ctx context.Context, port uint16) (dialer.Conn, error) {
		if port != 80 {
			t.Errorf("port %d", port)
		}
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", listener.Addr().String())
		if err != nil {
			return nil, err
		}
		return conn.(*net.TCPConn), nil
	}
	s.SetGuest(g)
	local, _ := connect(t, s)
	stream, err := vmpb.NewOOBManagementClient(local).Forward(bounded(t))
	must(t, err)
	must(t, stream.Send(&vmpb.ForwardIO{Port: 80}))
	header, err := stream.Header()
	if err != nil || header == nil {
		t.Fatalf("header %v, %v", header, err)
	}
	return stream
}

// receiveAll returns the data of a stream up to its end, and the error of the end.
func receiveAll(stream grpc.BidiStreamingClient[vmpb.ForwardIO, vmpb.ForwardIO]) (string, error) {
	var all strings.Builder
	for {
		message, err := stream.Recv()
		if err != nil {
			return all.String(), err
		}
		all.Write(message.GetData())
	}
}

// The stream carries all bytes, and the end of each direction.
func TestForward_CarriesEveryByteBothWays(t *testing.T) {
	stream := forward(t, func(conn *net.TCPConn) {
		request, _ := io.ReadAll(conn) // returns once the caller has closed its side
		_, _ = conn.Write(append(request, " and a response"...))
	})
	text := strings.Repeat("\x00\xff0123456789abcdef", 64<<10)
	go func() {
		for piece := range strings.SplitSeq(text, "8") {
			_ = stream.Send(&vmpb.ForwardIO{Data: []byte(piece)})
			_ = stream.Send(&vmpb.ForwardIO{}) // has no effect
		}
		_ = stream.CloseSend()
	}()
	got, err := receiveAll(stream)
	if want := strings.ReplaceAll(text, "8", "") + " and a response"; got != want || !errors.Is(err, io.EOF) {
		t.Errorf("%d bytes, %v; want %d bytes and the end", len(got), err, len(want))
	}
}

// A connection that breaks is an error, not the end. The guest waits for a byte: a reset while the hypervisor still
// connects is a refused connection.
func TestForward_ReportsBrokenConnection(t *testing.T) {
	stream := forward(t, func(conn *net.TCPConn) {
		_, _ = conn.Read(make([]byte, 1))
		_ = conn.SetLinger(0) // the guest resets the connection
	})
	must(t, stream.Send(&vmpb.ForwardIO{Data: []byte("x")}))
	if got, err := receiveAll(stream); got != "" || status.Code(err) != codes.Unavailable {
		t.Errorf("%q, %v; want UNAVAILABLE", got, err)
	}
}

// When the caller leaves, the guest's connection is closed, even if the guest neither sends nor receives anything.
func TestForward_ClosesConnectionOfCallerThatLeft(t *testing.T) {
	closed, close := context.WithCancel(context.Background())
	ctx, leave := context.WithCancel(bounded(t))
	s, g := newServer(t, Peers{}), newGuest(t)
	g.dial = func(context.Context, uint16) (dialer.Conn, error) {
		ours, _ := net.Pipe()
		return idle{ours, close}, nil
	}
	s.SetGuest(g)
	local, _ := connect(t, s)
	stream, err := vmpb.NewOOBManagementClient(local).Forward(ctx)
	must(t, err)
	must(t, stream.Send(&vmpb.ForwardIO{Port: 80, Data: []byte("request")}))
	_, err = stream.Header()
	must(t, err)
	leave()
	select {
	case <-closed.Done():
	case <-bounded(t).Done():
		t.Error("the connection stays open")
	}
}

// idle is a connection whose other side does nothing.
type idle struct {
	net.Conn
	closed func()
}

func (i idle) CloseWrite() error { return nil }

func (i idle) Close() error {
	i.closed()
	return i.Conn.Close()
}

// An error names the port and the reason.
func TestForward_Refused(t *testing.T) {
	refuse := func(err error) func(context.Context, uint16) (dialer.Conn, error) {
		return func(context.Context, uint16) (dialer.Conn, error) { return nil, err }
	}
	for name, test := range map[string]struct {
		port uint32
		dial func(context.Context, uint16) (dialer.Conn, error)
		code codes.Code
		want string
	}{
		"no service":      {80, refuse(errors.New("connection was refused")), codes.FailedPrecondition, "cannot connect to port 80 of the guest: connection was refused"},
		"a silent guest":  {80, refuse(context.DeadlineExceeded), codes.FailedPrecondition, "no response within 5s"},
		"no port":         {0, refuse(nil), codes.InvalidArgument, "0 is not a port number"},
		"too high a port": {1 << 16, refuse(nil), codes.InvalidArgument, "65536 is not a port number"},
	} {
		t.Run(name, func(t *testing.T) {
			s, g := newServer(t, Peers{}), newGuest(t)
			g.dial = test.dial
			s.SetGuest(g)
			local, _ := connect(t, s)
			stream, err := vmpb.NewOOBManagementClient(local).Forward(bounded(t))
			must(t, err)
			must(t, stream.Send(&vmpb.ForwardIO{Port: test.port}))
			if _, err := stream.Recv(); status.Code(err) != test.code || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error = %v, want %s with %q", err, test.code, test.want)
			}
		})
	}
}
