package moved

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/service"
	"github.com/millwright-dev/millwright/internal/vm/network/dialer"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// moving is a guest that returns datagrams, and has moved from one hypervisor to another.
type moving struct {
	*testing.T
	source, target *dialer.Direct
	// leave terminates the machine at the source, and end that at the target.
	leave, end func()
	// caller is the Pod of the source.
	caller string
	// server is the target's. It waits for the guest before it has moved.
	vmpb.UnimplementedHypervisorServer
	moved atomic.Pointer[Receiver]
	// calls counts calls while it waits.
	calls atomic.Int32
	dial  func() (*grpc.ClientConn, error)
}

// CarryConnections implements vmpb.HypervisorServer.
func (m *moving) CarryConnections(stream grpc.BidiStreamingServer[vmpb.GuestPacket, vmpb.GuestPacket]) error {
	if moved := m.moved.Load(); moved != nil {
		return service.Moved(moved).CarryConnections(stream)
	}
	m.calls.Add(1)
	return status.Error(codes.FailedPrecondition, "waiting")
}

func newMoving(t *testing.T) *moving {
	t.Helper()
	m := &moving{T: t, caller: "source"}
	m.source, m.leave = m.hypervisor(func([]byte) {})
	m.target, m.end = m.hypervisor(func(frame []byte) { m.target.Receive(response(frame)) })
	listener, server := bufconn.Listen(1<<16), grpc.NewServer()
	vmpb.RegisterHypervisorServer(server, m)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	m.dial = func() (*grpc.ClientConn, error) {
		return grpc.NewClient("passthrough:///target", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	}
	return m
}

// hypervisor returns a link whose frames go to a guest.
func (m *moving) hypervisor(guest func(frame []byte)) (d *dialer.Direct, end func()) {
	m.Helper()
	ctx, end := context.WithCancel(m.Context())
	m.Cleanup(end)
	d, err := dialer.NewDirect(ctx, dialer.Link{
		Guest: netip.MustParseAddr("10.77.0.16"), MAC: net.HardwareAddr{2, 0, 0, 0, 0, 0xa}, Own: netip.MustParseAddr("10.77.0.3"),
		Send: func(frame []byte) error {
			guest(frame)
			return nil
		},
	})
	must(m.T, err)
	return d, end
}

// response returns a frame with the same datagram in the other direction. The checksums are the same.
func response(frame []byte) []byte {
	frame = append([]byte(nil), frame...)
	ip := header.IPv4(frame[header.EthernetMinimumSize:])
	from, to := ip.SourceAddress(), ip.DestinationAddress()
	ip.SetSourceAddress(to)
	ip.SetDestinationAddress(from)
	datagram := header.UDP(ip.Payload())
	fromPort, toPort := datagram.SourcePort(), datagram.DestinationPort()
	datagram.SetSourcePort(toPort)
	datagram.SetDestinationPort(fromPort)
	return frame
}

// carry moves the connections.
func (m *moving) carry() *Carrier {
	m.Helper()
	c := Carry(m.dial, m.source, slog.New(slog.DiscardHandler))
	if c == nil {
		m.Fatal("the connections have already ended")
	}
	m.Cleanup(c.Close)
	m.leave()
	return c
}

// receive lets the target receive the connections of a Pod.
func (m *moving) receive(former string) {
	m.moved.Store(Receive(m.target, Ports{UDP: []uint16{7}}, former, func(context.Context) (string, error) { return m.caller, nil }))
}

// flow opens a flow of datagrams at the source.
func (m *moving) flow() (flow dialer.Flow, responses <-chan string) {
	m.Helper()
	received := make(chan string, 10)
	flow, err := m.source.DialUDP(7, func(datagram []byte) { received <- string(datagram) })
	must(m.T, err)
	return flow, received
}

// awaitCalls waits until the source has called a target that waits for the guest.
func (m *moving) awaitCalls(c *Carrier) {
	m.Helper()
	for m.calls.Load() < 3 {
		select {
		case <-c.Ready():
			m.Fatal("the connections are carried before the target has the guest")
		case <-c.Done():
			m.Fatal("the connections have ended")
		case <-time.After(time.Millisecond): // there are no events of calls
		}
	}
}

// TestCarry_WaitsForGuest checks that packets wait until the target has received the guest, and that the connections end
// with the guest.
func TestCarry_WaitsForGuest(t *testing.T) {
	t.Parallel()
	m := newMoving(t)
	flow, responses := m.flow()
	c := m.carry()
	flow.Send([]byte("early"))
	m.awaitCalls(c)
	m.receive("source")
	if got := <-responses; got != "early" {
		t.Errorf("received %q", got)
	}
	<-c.Ready()
	m.end()
	<-c.Done()
}

// TestCarry_OnlyFormerHypervisorOnce checks that the target refuses other hypervisors, and further calls.
func TestCarry_OnlyFormerHypervisorOnce(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(*moving){
		"another hypervisor": func(m *moving) { m.receive("other") },
		"another call": func(m *moving) {
			m.receive("source")
			conn, err := m.dial()
			must(m.T, err)
			m.Cleanup(func() { _ = conn.Close() })
			ctx, cancel := context.WithCancel(m.Context())
			m.Cleanup(cancel)
			stream, err := vmpb.NewHypervisorClient(conn).CarryConnections(ctx)
			must(m.T, err)
			header, err := stream.Header()
			if must(m.T, err); header == nil {
				m.Fatal("the first call is refused")
			}
		},
		"too late": func(m *moving) {
			m.receive("source")
			m.moved.Load().giveUp()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMoving(t)
			test(m)
			c := m.carry()
			select {
			case <-c.Done():
			case <-c.Ready():
				t.Error("the connections are carried")
			}
		})
	}
}

// TestCarry_TargetDoesNotRespond checks that connections that wait for the target end when they are closed.
func TestCarry_TargetDoesNotRespond(t *testing.T) {
	t.Parallel()
	m := newMoving(t)
	flow, _ := m.flow()
	c := m.carry()
	flow.Send([]byte("lost"))
	m.awaitCalls(c)
	c.Close()
	<-c.Done()
	if Carry(m.dial, m.source, slog.New(slog.DiscardHandler)) != nil {
		t.Error("connections are carried again")
	}
}
