package dialer

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"net/netip"
	"sync"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
)

const (
	// maxDatagram is the length of the longest datagram to a guest, in bytes. IPv4 permits no longer ones.
	maxDatagram = math.MaxUint16 - header.IPv4MinimumSize - header.UDPMinimumSize
	// maxReceived is the maximum number of datagrams of a guest that wait for their receivers. Further ones are dropped. It
	// limits their memory, because each may be as long as maxDatagram.
	maxReceived = 128
	// firstPort is the first port of flows.
	firstPort = 1024
	// maxFlows is the maximum number of flows. It leaves enough ports to choose from.
	maxFlows = 1 << 14
)

// Flow exchanges datagrams with a UDP port of a guest.
type Flow interface {
	// Send sends a datagram, in fragments if it is longer than the guest's MTU permits. It does not block. The datagram is
	// dropped if too many packets are waiting for the guest, or if it is longer than IPv4 permits.
	Send(datagram []byte)
	// Close closes the flow. The guest's next datagrams for it are dropped.
	Close()
}

// datagrams is the part of a Direct that exchanges datagrams with the guest. It does not use the endpoints of the network
// stack, because they limit only the bytes of waiting datagrams, and not their number.
type datagrams struct {
	link     Link
	stack    *stack.Stack
	endpoint *channel.Endpoint
	received chan received

	mu sync.Mutex
	// flows are the open flows by their ports of Link.Own.
	flows map[uint16]*flow
}

// flow implements Flow.
type flow struct {
	of *datagrams
	// own is the port of Link.Own, and guest the port of the guest.
	own, guest uint16
	receive    func(datagram []byte)
}

// received is a datagram of the guest.
type received struct {
	flow     *flow
	datagram []byte
}

// newDatagrams attaches to the link until the context is canceled or sending fails.
func newDatagrams(ctx context.Context, link Link) (*datagrams, error) {
	d := &datagrams{
		link: link, endpoint: channel.New(queued, maxPacket, ""),
		received: make(chan received, maxReceived), flows: map[uint16]*flow{},
	}
	var err error
	if d.stack, err = newStack(d.endpoint, link.Own, udp.NewProtocol); err != nil {
		return nil, err
	}
	d.stack.SetTransportProtocolHandler(udp.ProtocolNumber, d.handle)
	go d.link.transmit(ctx, d.stack, d.endpoint)
	go d.deliver(ctx)
	return d, nil
}

// open opens a flow to a port of the guest.
func (d *datagrams) open(port uint16, receive func(datagram []byte)) (Flow, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.flows) >= maxFlows {
		return nil, errors.New("too many flows of datagrams")
	}
	f := &flow{of: d, guest: port, receive: receive}
	// The port is random, so that a late datagram of the guest hardly ever reaches another client.
	for f.own == 0 || d.flows[f.own] != nil {
		f.own = firstPort + uint16(rand.N(math.MaxUint16-firstPort+1))
	}
	d.flows[f.own] = f
	return f, nil
}

// has reports whether a flow is open.
func (d *datagrams) has(f *flow) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.flows[f.own] == f
}

// uses reports whether an open flow has a port of Link.Own.
func (d *datagrams) uses(own uint16) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.flows[own] != nil
}

// handle queues a datagram of the guest. It returns false if the datagram belongs to no flow; the guest then gets an ICMP
// error.
func (d *datagrams) handle(id stack.TransportEndpointID, packet *stack.PacketBuffer) bool {
	d.mu.Lock()
	f := d.flows[id.LocalPort]
	d.mu.Unlock()
	if f == nil || f.guest != id.RemotePort || id.RemoteAddress != tcpip.AddrFromSlice(d.link.Guest.AsSlice()) {
		return false
	}
	content := packet.Data()
	if lengthOK, checksumOK := header.UDPValid(packet.TransportHeader().Slice(), content.Checksum, uint16(content.Size()),
		packet.NetworkProtocolNumber, id.RemoteAddress, id.LocalAddress, packet.RXChecksumValidated); !lengthOK || !checksumOK {
		return true
	}
	select {
	case d.received <- received{f, content.AsRange().ToSlice()}:
	default: // the guest sends more than the clients can receive
	}
	return true
}

// deliver passes datagrams to their receivers, which may block.
func (d *datagrams) deliver(ctx context.Context) {
	for {
		select {
		case next := <-d.received:
			if d.has(next.flow) {
				next.flow.receive(next.datagram)
			}
		case <-ctx.Done():
			return
		}
	}
}

// Send implements Flow.
func (f *flow) Send(datagram []byte) {
	d := f.of
	if len(datagram) > maxDatagram || !d.has(f) {
		return
	}
	own, guest := netip.AddrPortFrom(d.link.Own, f.own), netip.AddrPortFrom(d.link.Guest, f.guest)
	route, err := d.stack.FindRoute(card, fullAddress(own).Addr, fullAddress(guest).Addr, protocolOf(d.link.Own), false)
	if err != nil {
		return // the guest has terminated
	}
	defer route.Release()
	packet := stack.NewPacketBuffer(stack.PacketBufferOptions{
		ReserveHeaderBytes: header.UDPMinimumSize + int(route.MaxHeaderLength()), Payload: buffer.MakeWithData(datagram),
	})
	defer packet.DecRef()
	packet.TransportProtocolNumber = udp.ProtocolNumber
	fields := header.UDP(packet.TransportHeader().Push(header.UDPMinimumSize))
	length := uint16(packet.Size())
	fields.Encode(&header.UDPFields{SrcPort: f.own, DstPort: f.guest, Length: length})
	sum := fields.CalculateChecksum(checksum.Combine(route.PseudoHeaderChecksum(udp.ProtocolNumber, length), packet.Data().Checksum()))
	if sum != math.MaxUint16 { // the complement would mean that there is no checksum
		sum = ^sum
	}
	fields.SetChecksum(sum)
	// An error means that the packet is dropped.
	_ = route.WritePacket(stack.NetworkHeaderParams{Protocol: udp.ProtocolNumber, TTL: route.DefaultTTL()}, packet)
}

// Close implements Flow.
func (f *flow) Close() {
	f.of.mu.Lock()
	defer f.of.mu.Unlock()
	if f.of.flows[f.own] == f {
		delete(f.of.flows, f.own)
	}
}
