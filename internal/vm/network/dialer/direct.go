package dialer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// directBuffer limits the memory of each direction of a connection of a Direct, in bytes.
const directBuffer = 64 << 10

// keepAlive is when a silent connection is probed.
type keepAlive struct {
	idle, interval time.Duration
	count          int
}

// defaultKeepAlive detects within three minutes that a guest has been reset. It then does not know its connections any
// more, and reports that only in response to a packet. Clients cannot detect it themselves, because this process responds to
// their probes.
var defaultKeepAlive = keepAlive{idle: time.Minute, interval: 15 * time.Second, count: 8}

// Link is the link to one guest.
type Link struct {
	// Guest is the guest's IP address, and MAC its Ethernet address. Both are required.
	Guest netip.Addr
	MAC   net.HardwareAddr
	// Own is the IP address that the guest sees as the origin of connections. It has the same IP version as Guest,
	// and must not belong to anyone who uses TCP with the guest, or UDP ports from 1024 upward. Required.
	Own netip.Addr
	// Send sends a frame to the guest. It may block, and be called concurrently. Required.
	Send func(frame []byte) error
}

// Direct connects to a guest over the guest's own link. Create it with NewDirect.
type Direct struct {
	stack    *stack.Stack
	link     Link
	endpoint *channel.Endpoint
	probes   keepAlive
	// openDatagrams sets datagrams when the first flow is opened. They have a network stack of their own, so that a flood of
	// datagrams does not displace packets of connections.
	openDatagrams func() (*datagrams, error)
	datagrams     atomic.Pointer[datagrams]

	// end cancels ctx, and thus breaks all connections. After stay, the context of NewDirect no longer does so. stay returns
	// false if it already has.
	ctx  context.Context
	end  func()
	stay func() bool
	// moved replaces Link.Send when the guest has moved to another hypervisor.
	moved atomic.Pointer[func(packet []byte) error]
	// adopted has the connections of the guest's former hypervisor. It is nil if there are none.
	adopted atomic.Pointer[Adopted]
}

// NewDirect attaches to the link until the context is canceled or sending fails. Open connections then break, unless Move
// was called before.
func NewDirect(ctx context.Context, link Link) (*Direct, error) {
	d := &Direct{link: link, endpoint: channel.New(queued, maxPacket, ""), probes: defaultKeepAlive}
	d.ctx, d.end = context.WithCancel(context.WithoutCancel(ctx))
	d.stay = context.AfterFunc(ctx, d.end)
	link.Send = d.send
	var err error
	if d.stack, err = newStack(d.endpoint, link.Own, tcp.NewProtocol); err != nil {
		d.end()
		return nil, err
	}
	for _, option := range []tcpip.SettableTransportProtocolOption{
		&tcpip.TCPSendBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: directBuffer, Max: directBuffer},
		&tcpip.TCPReceiveBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: directBuffer, Max: directBuffer},
	} {
		if err := d.stack.SetTransportProtocolOption(tcp.ProtocolNumber, option); err != nil {
			d.end()
			return nil, fmt.Errorf("limiting the buffers of connections: %s", err)
		}
	}
	d.openDatagrams = sync.OnceValues(func() (*datagrams, error) {
		opened, err := newDatagrams(d.ctx, link)
		d.datagrams.Store(opened)
		return opened, err
	})
	go link.transmit(d.ctx, d.stack, d.endpoint)
	return d, nil
}

// mac is the Ethernet address of frames to guests. They do not respond to it, but to that of their gateway.
var mac = net.HardwareAddr{0x02, 0, 0, 0, 0, 0x03}

// transmit sends the packets of a network stack to the guest. At the end, it destroys the stack.
func (l *Link) transmit(ctx context.Context, s *stack.Stack, packets *channel.Endpoint) {
	defer s.Destroy()
	for packet := packets.ReadContext(ctx); packet != nil; packet = packets.ReadContext(ctx) {
		err := l.Send(frameOf(mac, l.MAC, packet))
		packet.DecRef()
		if err != nil {
			return
		}
	}
}

// Receive handles a frame from the guest to Link.Own. It does not block, and keeps no reference to the frame.
func (d *Direct) Receive(frame []byte) {
	if adopted := d.adopted.Load(); adopted != nil && adopted.take(frame) {
		return
	}
	d.receive(frame)
}

// receive passes a frame of the guest to the network stack of this process.
func (d *Direct) receive(frame []byte) {
	if isDatagram(frame) {
		if opened := d.datagrams.Load(); opened != nil {
			receive(opened.endpoint, frame)
		}
		return
	}
	receive(d.endpoint, frame)
}

// isDatagram reports whether a frame contains a datagram, or a fragment of an IPv6 packet. Connections have no fragments.
func isDatagram(frame []byte) bool {
	packet := frame[min(len(frame), header.EthernetMinimumSize):]
	switch {
	case len(packet) >= header.IPv4MinimumSize && header.IPVersion(packet) == header.IPv4Version:
		return header.IPv4(packet).TransportProtocol() == header.UDPProtocolNumber
	case len(packet) >= header.IPv6MinimumSize && header.IPVersion(packet) == header.IPv6Version:
		next := header.IPv6(packet).NextHeader()
		return next == uint8(header.UDPProtocolNumber) || next == uint8(header.IPv6FragmentExtHdrIdentifier)
	}
	return false
}

// DialUDP opens a flow of datagrams to a UDP port of the guest. It calls receive with each datagram from this port to the
// flow, one at a time for all flows. While receive blocks, further datagrams of the guest are dropped.
func (d *Direct) DialUDP(port uint16, receive func(datagram []byte)) (Flow, error) {
	opened, err := d.openDatagrams()
	if err != nil {
		return nil, err
	}
	return opened.open(port, receive)
}

// Dial connects to a TCP port of the guest.
func (d *Direct) Dial(ctx context.Context, port uint16) (Conn, error) {
	conn, err := dial(ctx, d.stack, fullAddress(netip.AddrPortFrom(d.link.Own, 0)), netip.AddrPortFrom(d.link.Guest, port))
	if failed, is := errors.AsType[*net.OpError](err); is {
		return nil, failed.Err // the caller knows the address
	}
	if err != nil {
		return nil, err // not an interface that holds a nil pointer
	}
	if err := d.keepAlive(conn, port); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// keepAlive enables the probes of a connection to a port. The connection itself has no such method.
func (d *Direct) keepAlive(conn net.Conn, port uint16) error {
	local, ok := conn.LocalAddr().(*net.TCPAddr)
	if !ok {
		return nil // it has been closed
	}
	found, ok := d.endpointOf(uint16(local.Port), port).(tcpip.Endpoint)
	if !ok {
		return nil // it has been closed
	}
	idle, interval := tcpip.KeepaliveIdleOption(d.probes.idle), tcpip.KeepaliveIntervalOption(d.probes.interval)
	for _, option := range []tcpip.SettableSocketOption{&idle, &interval} {
		if err := found.SetSockOpt(option); err != nil {
			return fmt.Errorf("setting the times of probes: %s", err)
		}
	}
	if err := found.SetSockOptInt(tcpip.KeepaliveCountOption, d.probes.count); err != nil {
		return fmt.Errorf("setting the number of probes: %s", err)
	}
	found.SocketOptions().SetKeepAlive(true)
	return nil
}

// endpointOf returns the endpoint of a connection from a port of Link.Own to a port of the guest; nil if there is none.
func (d *Direct) endpointOf(own, guest uint16) stack.TransportEndpoint {
	return d.stack.FindTransportEndpoint(protocolOf(d.link.Guest), tcp.ProtocolNumber, stack.TransportEndpointID{
		LocalPort: own, LocalAddress: tcpip.AddrFromSlice(d.link.Own.AsSlice()),
		RemotePort: guest, RemoteAddress: tcpip.AddrFromSlice(d.link.Guest.AsSlice()),
	}, card)
}

// Conn is a connection to a guest.
type Conn interface {
	net.Conn
	// CloseWrite closes the direction to the guest.
	CloseWrite() error
}
