package dialer

import (
	"bytes"
	"context"
	"io"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
)

// moving is a guest that echoes what it receives on port 7, and moves from one hypervisor to another.
type moving struct {
	*testing.T
	guest, own     netip.Addr
	stack          *stack.Stack
	source, target *Direct
	adopted        *Adopted
	// leave terminates the machine at the source.
	leave func()
	// at is where the guest runs; nil while it is stopped.
	at atomic.Pointer[Direct]
	// sent receives the packets that the former hypervisor has sent to the guest, and reached has the last frame to it.
	sent    chan []byte
	reached atomic.Pointer[[]byte]
}

func newMoving(t *testing.T, guest, own string) *moving {
	t.Helper()
	m := &moving{T: t, guest: netip.MustParseAddr(guest), own: netip.MustParseAddr(own), sent: make(chan []byte, 100)}
	endpoint := channel.New(queued, maxPacket, "")
	var err error
	if m.stack, err = newStack(endpoint, m.guest, tcp.NewProtocol, udp.NewProtocol); err != nil {
		t.Fatal(err)
	}
	ctx, leave := context.WithCancel(t.Context())
	m.leave = leave
	m.source, m.target = m.hypervisor(ctx, endpoint), m.hypervisor(t.Context(), endpoint)
	m.at.Store(m.source)
	go func() {
		defer m.stack.Destroy()
		for packet := endpoint.ReadContext(t.Context()); packet != nil; packet = endpoint.ReadContext(t.Context()) {
			if at := m.at.Load(); at != nil {
				at.Receive(frameOf(guestMAC, mac, packet))
			}
			packet.DecRef()
		}
	}()
	listener, err := gonet.ListenTCP(m.stack, fullAddress(netip.AddrPortFrom(m.guest, 7)), protocolOf(m.guest))
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // the test is complete
			}
			go func() {
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			}()
		}
	}()
	return m
}

// hypervisor returns a link to the guest that works while the guest runs there.
func (m *moving) hypervisor(ctx context.Context, guest *channel.Endpoint) *Direct {
	m.Helper()
	var d *Direct
	send := func(frame []byte) error {
		if m.at.Load() == d {
			m.reached.Store(&frame)
			receive(guest, frame)
		}
		return nil
	}
	d, err := NewDirect(ctx, Link{Guest: m.guest, MAC: guestMAC, Own: m.own, Send: send})
	if err != nil {
		m.Fatal(err)
	}
	return d
}

// move moves the guest, which is stopped while send is called.
func (m *moving) move(meanwhile func()) {
	m.Helper()
	m.at.Store(nil)
	meanwhile()
	m.adopted = m.target.Adopt([]uint16{7}, []uint16{7})
	m.at.Store(m.target) // the guest runs before its former hypervisor has a connection to the new one
	ctx := m.Context()
	if !m.source.Move(ctx, func(packet []byte) error {
		m.sent <- packet
		return m.adopted.Send(packet)
	}) {
		m.Fatal("the connections have already ended")
	}
	m.leave()
	go func() {
		for {
			select {
			case packet := <-m.adopted.Packets():
				m.source.Deliver(packet)
			case <-ctx.Done():
				return
			}
		}
	}()
}

// dial opens a connection.
func (m *moving) dial(from *Direct) Conn {
	m.Helper()
	ctx, cancel := context.WithTimeout(m.Context(), time.Minute)
	defer cancel()
	conn, err := from.Dial(ctx, 7)
	if err != nil {
		m.Fatal(err)
	}
	m.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		m.Fatal(err)
	}
	return conn
}

func (m *moving) write(to Conn, text string) {
	m.Helper()
	if _, err := io.WriteString(to, text); err != nil {
		m.Fatal(err)
	}
}

func (m *moving) want(from Conn, text string) {
	m.Helper()
	got := make([]byte, len(text))
	if _, err := io.ReadFull(from, got); err != nil || string(got) != text {
		m.Errorf("%q came back, %v; want %q", got, err, text)
	}
}

// TestDirect_GuestMoves checks that connections and flows of datagrams continue when the guest moves to another
// hypervisor, also what is sent while the guest is stopped, that new ones can be opened, and that they end with those of
// the former hypervisor. The connections of the new hypervisor are not affected.
func TestDirect_GuestMoves(t *testing.T) {
	t.Parallel()
	for name, addresses := range map[string][2]string{"IPv4": {"10.77.0.16", "10.77.0.3"}, "IPv6": {"fd77::16", "fd77::3"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMoving(t, addresses[0], addresses[1])
			echoDatagrams(t, m.stack, m.guest)
			responses := make(chan string, 1)
			flow, err := m.source.DialUDP(7, func(datagram []byte) { responses <- string(datagram) })
			if err != nil {
				t.Fatal(err)
			}
			open := m.dial(m.source)
			m.write(open, "before")
			m.want(open, "before")
			m.move(func() { m.write(open, "meanwhile") })
			m.want(open, "meanwhile")
			m.write(open, "after")
			m.want(open, "after")
			flow.Send([]byte("datagram"))
			if got := <-responses; got != "datagram" {
				t.Errorf("the flow received %q", got)
			}
			later, own := m.dial(m.source), m.dial(m.target)
			for _, conn := range []Conn{later, own} {
				m.write(conn, "new")
				m.want(conn, "new")
			}
			m.adopted.Close()
			m.write(own, "own")
			m.want(own, "own")
		})
	}
}

// TestAdopted_GuestMovesAgain checks that the connections of the former hypervisor are given up when the guest moves again.
func TestAdopted_GuestMovesAgain(t *testing.T) {
	t.Parallel()
	m := newMoving(t, "10.77.0.16", "10.77.0.3")
	m.move(func() {})
	if !m.target.Move(t.Context(), func([]byte) error { return nil }) {
		t.Fatal("the connections are already broken")
	}
	select {
	case <-m.adopted.Done():
	default:
		t.Error("the connections are kept")
	}
}

// TestAdopted_RestrictsFormerHypervisor checks that the former hypervisor, which may have been taken over, cannot send
// other packets to the guest than clients of its ports could.
func TestAdopted_RestrictsFormerHypervisor(t *testing.T) {
	t.Parallel()
	m := newMoving(t, "10.77.0.16", "10.77.0.3")
	m.move(func() {})
	m.dial(m.source)
	valid := <-m.sent
	own := uint16(m.dial(m.target).LocalAddr().(interface{ AddrPort() netip.AddrPort }).AddrPort().Port())
	reaches := func(packet []byte) bool {
		t.Helper()
		if err := m.adopted.Send(packet); err != nil {
			t.Error(err)
		}
		return bytes.HasSuffix(*m.reached.Load(), packet) // there may be packets of the other connection
	}
	change := func(apply func(header.IPv4, header.TCP)) []byte {
		packet := append([]byte(nil), valid...)
		apply(header.IPv4(packet), header.TCP(packet[header.IPv4MinimumSize:]))
		return packet
	}
	for name, packet := range map[string][]byte{
		"another source": change(func(ip header.IPv4, _ header.TCP) {
			ip.SetSourceAddress(fullAddress(netip.MustParseAddrPort("10.77.0.2:0")).Addr)
		}),
		"another destination": change(func(ip header.IPv4, _ header.TCP) {
			ip.SetDestinationAddress(fullAddress(netip.MustParseAddrPort("10.77.0.17:0")).Addr)
		}),
		"the port of name servers": change(func(_ header.IPv4, s header.TCP) { s.SetSourcePort(53) }),
		"another port":             change(func(_ header.IPv4, s header.TCP) { s.SetDestinationPort(22) }),
		"a fragment":               change(func(ip header.IPv4, _ header.TCP) { ip.SetFlagsFragmentOffset(header.IPv4FlagMoreFragments, 0) }),
		"another connection":       change(func(_ header.IPv4, s header.TCP) { s.SetSourcePort(own) }),
		"ICMP":                     change(func(ip header.IPv4, _ header.TCP) { ip[9] = byte(header.ICMPv4ProtocolNumber) }),
		"options":                  change(func(ip header.IPv4, _ header.TCP) { ip.SetHeaderLength(header.IPv4MinimumSize + 4) }),
		"an incomplete packet":     valid[:len(valid)-1],
		"too long":                 append(append([]byte(nil), valid...), make([]byte, maxPacket)...),
	} {
		if reaches(packet) {
			t.Errorf("%s reached the guest", name)
		}
	}
	if !reaches(valid) {
		t.Error("a valid packet did not reach the guest")
	}
}

// TestDirect_BreaksBeforeMove checks that connections of a machine that has terminated are not kept.
func TestDirect_BreaksBeforeMove(t *testing.T) {
	t.Parallel()
	m := newMoving(t, "10.77.0.16", "10.77.0.3")
	conn := m.dial(m.source)
	m.leave()
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("the connection does not break")
	}
	if m.source.Move(t.Context(), func([]byte) error { return nil }) {
		t.Error("the connections are kept")
	}
}
