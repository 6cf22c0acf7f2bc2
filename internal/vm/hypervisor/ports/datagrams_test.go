package ports

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millwright-dev/millwright/internal/vm/network/dialer"
	"github.com/millwright-dev/millwright/test/support/freeport"
)

// echo is a guest that returns each datagram, with the port of the guest before it.
type echo struct{ Dial }

type echoFlow struct {
	port    uint16
	receive func([]byte)
}

// DialGuestUDP implements Guest.
func (echo) DialGuestUDP(port uint16, receive func([]byte)) (dialer.Flow, error) {
	return &echoFlow{port, receive}, nil
}

func (f *echoFlow) Send(datagram []byte) {
	f.receive(append([]byte(strconv.Itoa(int(f.port))+" "), datagram...))
}
func (*echoFlow) Close() {}

// exchange sends a datagram and returns the response.
func exchange(t *testing.T, conn net.Conn, datagram []byte) string {
	t.Helper()
	must(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	_, err := conn.Write(datagram)
	must(t, err)
	response := make([]byte, datagramSize)
	n, err := conn.Read(response)
	must(t, err)
	return string(response[:n])
}

// TestDatagrams_CarriesEveryByteBothWays checks that each client gets the responses to its own datagrams, of any length that
// its network permits, from the port to which it has sent them.
func TestDatagrams_CarriesEveryByteBothWays(t *testing.T) {
	for name, address := range map[string]string{"IPv4": "127.0.0.1:0", "IPv6": "[::1]:0"} {
		t.Run(name, func(t *testing.T) {
			s, err := Listen(Config{}, echo{}, nil)
			must(t, err)
			defer s.Close()
			for _, port := range []uint16{53, 443} {
				datagrams, err := net.ListenPacket("udp", address)
				must(t, err)
				s.serveUDP(datagrams.(*net.UDPConn), port)
				for client := range 2 {
					conn, err := net.Dial("udp", datagrams.LocalAddr().String())
					must(t, err)
					defer conn.Close()
					for _, length := range []int{0, 1, 1500, 60000} {
						sent := bytes.Repeat([]byte(strconv.Itoa(client)), length)
						if got, want := exchange(t, conn, sent), strconv.Itoa(int(port))+" "+string(sent); got != want {
							t.Fatalf("port %d, client %d: got %d bytes, want %d", port, client, len(got), len(want))
						}
					}
				}
			}
		})
	}
}

// TestListen_UDPPortInUse checks that Listen reports a UDP port that is in use, leaves none open, and that a TCP port and a
// UDP port can have the same number.
func TestListen_UDPPortInUse(t *testing.T) {
	used, err := net.ListenPacket("udp", "127.0.0.1:0")
	must(t, err)
	defer used.Close()
	free, inUse := freeport.Address(t), used.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	config := Config{Address: "127.0.0.1", Ports: []uint16{free.Port()}, UDPPorts: []uint16{free.Port(), inUse}}
	if _, err = Listen(config, echo{}, nil); err == nil {
		t.Fatal("no error")
	}
	config.UDPPorts = config.UDPPorts[:1]
	s, err := Listen(config, echo{}, nil)
	must(t, err)
	defer s.Close()
	conn, err := net.Dial("udp", free.String())
	must(t, err)
	defer conn.Close()
	if got, want := exchange(t, conn, []byte("request")), strconv.Itoa(int(free.Port()))+" request"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// quietSocket is a socket without datagrams of clients, which counts the responses to each client.
type quietSocket struct {
	closed    chan struct{}
	responses map[netip.AddrPort]int
}

func newQuietSocket() *quietSocket {
	return &quietSocket{make(chan struct{}), map[netip.AddrPort]int{}}
}

func (q *quietSocket) ReadFromUDPAddrPort([]byte) (int, netip.AddrPort, error) {
	<-q.closed
	return 0, netip.AddrPort{}, net.ErrClosed
}

func (q *quietSocket) WriteToUDPAddrPort(datagram []byte, client netip.AddrPort) (int, error) {
	q.responses[client]++
	return len(datagram), nil
}

func (q *quietSocket) Close() error { close(q.closed); return nil }

// recorder is a guest that records its flows and does not respond by itself.
type recorder struct {
	Dial
	flows []*recordedFlow
}

type recordedFlow struct {
	sent    int
	receive func([]byte)
	closed  atomic.Bool
}

// DialGuestUDP implements Guest.
func (r *recorder) DialGuestUDP(_ uint16, receive func([]byte)) (dialer.Flow, error) {
	r.flows = append(r.flows, &recordedFlow{receive: receive})
	return r.flows[len(r.flows)-1], nil
}

func (f *recordedFlow) Send([]byte) { f.sent++ }
func (f *recordedFlow) Close()      { f.closed.Store(true) }

// open returns the positions of the flows that are open.
func (r *recorder) open() (open []int) {
	for i, f := range r.flows {
		if !f.closed.Load() {
			open = append(open, i)
		}
	}
	return open
}

// newPort returns a port of a server for a guest, and its socket.
func newPort(t *testing.T, guest Guest, log *slog.Logger) (*datagramPort, *quietSocket) {
	t.Helper()
	s, err := Listen(Config{}, guest, log)
	must(t, err)
	t.Cleanup(s.Close)
	clients := newQuietSocket()
	s.serveUDP(clients, 53)
	return s.datagrams[0], clients
}

func clientAt(address byte, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, address}), port)
}

// TestDatagrams_FlowExpiresWithoutClient checks that a flow expires when its client is silent, whatever the guest sends, and that
// the client then gets a new one.
func TestDatagrams_FlowExpiresWithoutClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		guest := &recorder{}
		port, clients := newPort(t, guest, nil)
		client := clientAt(1, 4711)
		for range 3 {
			port.forward(client, []byte("request"))
			time.Sleep(idleTime - time.Second)
		}
		if len(guest.flows) != 1 || guest.flows[0].sent != 3 || guest.flows[0].closed.Load() {
			t.Fatalf("an active client has %d flows", len(guest.flows))
		}
		guest.flows[0].receive([]byte("response"))
		if clients.responses[client] != 1 {
			t.Error("the client got no response")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if !guest.flows[0].closed.Load() || len(port.flows) != 0 {
			t.Error("the flow did not expire")
		}
		port.forward(client, []byte("request"))
		if len(guest.flows) != 2 || guest.flows[1].sent != 1 {
			t.Error("the client got no new flow")
		}
	})
}

// TestDatagrams_ClientOpensManyFlows checks that a client that opens flows without end closes only its own, the one first that
// has been idle the longest, and that it cannot fill the log.
func TestDatagrams_ClientOpensManyFlows(t *testing.T) {
	var log bytes.Buffer
	guest := &recorder{}
	port, _ := newPort(t, guest, slog.New(slog.NewTextHandler(&log, nil)))
	port.forward(clientAt(1, 1), nil)
	for n := range maxFlows {
		port.forward(clientAt(2, uint16(n+1)), nil)
		port.forward(clientAt(2, 1), nil) // stays active
	}
	if open := guest.open(); len(open) != maxFlows || open[0] != 0 || open[1] != 1 || open[2] != 3 {
		t.Errorf("%d flows are open, %v...", len(open), open[:3])
	}
	for n := range maxFlows {
		port.forward(clientAt(2, uint16(2*maxFlows+n)), nil)
	}
	if open := guest.open(); len(open) != maxFlows || !slices.Contains(open, 0) || len(port.flows) != maxFlows {
		t.Errorf("%d flows are open, first %v", len(open), open[0])
	}
	if lines := strings.Count(log.String(), "\n"); lines != 1 {
		t.Errorf("%d lines in the log", lines)
	}
}

// TestDatagrams_DoNotDisplaceConnections checks that datagrams from any number of addresses, which may be spoofed, displace
// no connection.
func TestDatagrams_DoNotDisplaceConnections(t *testing.T) {
	guest := &recorder{}
	port, _ := newPort(t, guest, nil)
	_, ok := port.server.admit(&net.TCPAddr{IP: net.IPv4(10, 0, 0, 1)}, func() { t.Error("the connection was closed") })
	for n := range 2 * maxFlows {
		port.forward(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(n >> 8), byte(n)}), 53), nil)
	}
	if !ok || len(guest.open()) != maxFlows {
		t.Errorf("%d flows are open", len(guest.open()))
	}
	for n := range maxConnections - 1 {
		if _, ok := port.server.admit(&net.TCPAddr{IP: net.IPv4(10, 0, 0, 2)}, nil); !ok {
			t.Fatalf("connection %d was refused", n)
		}
	}
}

// TestDatagrams_SpecialAddresses checks that the guest cannot respond to special addresses, whoever sends datagrams from
// there.
func TestDatagrams_SpecialAddresses(t *testing.T) {
	guest := &recorder{}
	port, _ := newPort(t, guest, nil)
	for _, client := range []string{"169.254.169.254", "168.63.129.16", "0.0.0.0", "255.255.255.255", "fe80::1", "fd00:ec2::254", "::"} {
		if port.forward(netip.AddrPortFrom(netip.MustParseAddr(client), 53), nil); len(guest.flows) > 0 {
			t.Fatalf("%s has a flow", client)
		}
	}
	for n, client := range []string{"127.0.0.1", "::1", "10.0.0.1", "fd00::1"} {
		if port.forward(netip.AddrPortFrom(netip.MustParseAddr(client), 53), nil); len(guest.flows) != n+1 {
			t.Errorf("%s has no flow", client)
		}
	}
}

// TestDatagrams_GuestIsElsewhere checks that datagrams for a guest that does not run here are dropped.
func TestDatagrams_GuestIsElsewhere(t *testing.T) {
	port, _ := newPort(t, Dial(func(context.Context, uint16) (dialer.Conn, error) { return nil, errors.New("not here") }), nil)
	if port.forward(clientAt(1, 1), nil); len(port.flows) != 0 {
		t.Error("there is a flow")
	}
}

// TestServer_CloseClosesFlows checks that no flow is left.
func TestServer_CloseClosesFlows(t *testing.T) {
	guest := &recorder{}
	s, err := Listen(Config{}, guest, nil)
	must(t, err)
	s.serveUDP(newQuietSocket(), 53)
	s.datagrams[0].forward(clientAt(1, 1), nil)
	s.datagrams[0].forward(clientAt(2, 1), nil)
	s.Close()
	if open := guest.open(); len(open) != 0 || len(guest.flows) != 2 {
		t.Errorf("the flows %v of %d are open", open, len(guest.flows))
	}
}
