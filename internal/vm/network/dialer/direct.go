package dialer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
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
	// and must not belong to anyone who uses TCP with the guest. Required.
	Own netip.Addr
	// Send sends a frame to the guest. It is not called concurrently, and may block. Required.
	Send func(frame []byte) error
}

// Direct connects to a guest over the guest's own link. Create it with NewDirect.
type Direct struct {
	stack    *stack.Stack
	link     Link
	endpoint *channel.Endpoint
	probes   keepAlive
}

// NewDirect attaches to the link until the context is canceled or sending fails. Open connections then break.
func NewDirect(ctx context.Context, link Link) (*Direct, error) {
	d := &Direct{link: link, endpoint: channel.New(queued, maxPacket, ""), probes: defaultKeepAlive}
	var err error
	if d.stack, err = newStack(d.endpoint, link.Own); err != nil {
		return nil, err
	}
	for _, option := range []tcpip.SettableTransportProtocolOption{
		&tcpip.TCPSendBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: directBuffer, Max: directBuffer},
		&tcpip.TCPReceiveBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: directBuffer, Max: directBuffer},
	} {
		if err := d.stack.SetTransportProtocolOption(tcp.ProtocolNumber, option); err != nil {
			return nil, fmt.Errorf("limiting the buffers of connections: %s", err)
		}
	}
	go d.send(ctx)
	return d, nil
}

// mac is the Ethernet address of frames to guests. They do not respond to it, but to that of their gateway.
var mac = net.HardwareAddr{0x02, 0, 0, 0, 0, 0x03}

func (d *Direct) send(ctx context.Context) {
	defer d.stack.Destroy()
	for packet := d.endpoint.ReadContext(ctx); packet != nil; packet = d.endpoint.ReadContext(ctx) {
		err := d.link.Send(frameOf(mac, d.link.MAC, packet))
		packet.DecRef()
		if err != nil {
			return
		}
	}
}

// Receive handles a frame from the guest to Link.Own. It does not block, and keeps no reference to the frame.
func (d *Direct) Receive(frame []byte) { receive(d.endpoint, frame) }

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
	protocol := protocolOf(d.link.Guest)
	found, ok := d.stack.FindTransportEndpoint(protocol, tcp.ProtocolNumber, stack.TransportEndpointID{
		LocalPort: uint16(local.Port), LocalAddress: tcpip.AddrFromSlice(d.link.Own.AsSlice()),
		RemotePort: port, RemoteAddress: tcpip.AddrFromSlice(d.link.Guest.AsSlice()),
	}, card).(tcpip.Endpoint)
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

// Conn is a connection to a guest.
type Conn interface {
	net.Conn
	// CloseWrite closes the direction to the guest.
	CloseWrite() error
}
