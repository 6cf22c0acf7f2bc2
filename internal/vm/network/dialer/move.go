package dialer

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"slices"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
)

// Move keeps the connections and flows of the Direct, and lets new ones be opened, although the guest has moved to another
// hypervisor: from now on, packets to the guest go to send, which may block. Pass packets of the guest to Deliver. The
// connections break when send returns an error or the context is canceled. Move returns false if they are already broken.
func (d *Direct) Move(ctx context.Context, send func(packet []byte) error) bool {
	if !d.stay() {
		return false
	}
	if adopted := d.adopted.Load(); adopted != nil {
		adopted.Close()
	}
	d.moved.Store(&send)
	context.AfterFunc(ctx, d.end)
	return true
}

// send sends a frame to the guest. If the guest has moved while this link blocked, the frame is lost, and repeated by TCP.
func (d *Direct) send(frame []byte) error {
	if moved := d.moved.Load(); moved != nil {
		return (*moved)(frame[header.EthernetMinimumSize:])
	}
	err := d.link.Send(frame)
	if err != nil && d.moved.Load() != nil {
		return nil
	}
	return err
}

// Deliver handles a packet of a guest that has moved. It does not block, and keeps no reference to the packet. Packets that
// do not come from the guest's address are ignored.
func (d *Direct) Deliver(packet []byte) {
	p, ok := parse(packet)
	if ok && p.from == d.link.Guest && p.to == d.link.Own {
		d.Receive(frameWith(nil, nil, packet))
	}
}

// maxAdopted is the maximum number of packets of the guest that wait for its former hypervisor. Further ones are dropped.
const maxAdopted = 512

// Adopted are the connections and flows to the guest that its former hypervisor has kept by Move. Create it with Adopt.
type Adopted struct {
	of       *Direct
	tcp, udp []uint16
	packets  chan []byte
	ctx      context.Context
	cancel   context.CancelFunc
}

// Adopt keeps packets of the guest that belong to no connection or flow of the Direct for the guest's former hypervisor,
// instead of resetting the connections. The former hypervisor may use the given TCP and UDP ports of the guest. The caller
// must close the result.
func (d *Direct) Adopt(tcp, udp []uint16) *Adopted {
	a := &Adopted{of: d, tcp: tcp, udp: udp, packets: make(chan []byte, maxAdopted)}
	a.ctx, a.cancel = context.WithCancel(d.ctx)
	d.adopted.Store(a)
	return a
}

// Close gives the connections up. The guest gets a reset when it sends something on one of them.
func (a *Adopted) Close() {
	a.of.adopted.CompareAndSwap(a, nil)
	a.cancel()
}

// Done is closed when the connections are given up, or the machine has terminated or its guest has moved.
func (a *Adopted) Done() <-chan struct{} { return a.ctx.Done() }

// Packets receives packets of the guest for its former hypervisor.
func (a *Adopted) Packets() <-chan []byte { return a.packets }

// take keeps the packet of a frame of the guest to Link.Own, unless the packet is for this Direct.
func (a *Adopted) take(frame []byte) bool {
	packet := frame[min(len(frame), header.EthernetMinimumSize):]
	p, ok := parse(packet)
	if !ok || a.has(p.toPort, p.fromPort, p.protocol) {
		return false
	}
	select {
	case a.packets <- bytes.Clone(packet):
	default: // the former hypervisor receives too slowly
	}
	return true
}

// has reports whether a connection or flow from a port of Link.Own to a port of the guest belongs to the Direct.
func (a *Adopted) has(own, guest uint16, protocol tcpip.TransportProtocolNumber) bool {
	if protocol == tcp.ProtocolNumber {
		return a.of.endpointOf(own, guest) != nil
	}
	opened := a.of.datagrams.Load()
	return opened != nil && opened.uses(own)
}

// Send sends a packet of the former hypervisor to the guest. The former hypervisor may have been taken over, so it may send
// only what clients of the guest's ports could: other packets are dropped. Send returns an error if the guest has
// terminated.
func (a *Adopted) Send(packet []byte) error {
	p, ok := parse(packet)
	ports := a.tcp
	if p.protocol == udp.ProtocolNumber {
		ports = a.udp
	}
	link := a.of.link
	if !ok || len(packet) > maxPacket || p.from != link.Own || p.to != link.Guest || p.fromPort < firstPort ||
		!slices.Contains(ports, p.toPort) || a.has(p.fromPort, p.toPort, p.protocol) {
		return nil
	}
	return a.of.send(frameWith(mac, link.MAC, packet))
}

// frameWith returns a frame with an IP packet.
func frameWith(from, to net.HardwareAddr, packet []byte) []byte {
	protocol := header.IPv4ProtocolNumber
	if header.IPVersion(packet) == header.IPv6Version {
		protocol = header.IPv6ProtocolNumber
	}
	frame := make([]byte, header.EthernetMinimumSize, header.EthernetMinimumSize+len(packet))
	header.Ethernet(frame).Encode(&header.EthernetFields{SrcAddr: tcpip.LinkAddress(from), DstAddr: tcpip.LinkAddress(to), Type: protocol})
	return append(frame, packet...)
}

// transport describes an unfragmented packet with a TCP segment or a datagram.
type transport struct {
	from, to         netip.Addr
	fromPort, toPort uint16
	protocol         tcpip.TransportProtocolNumber
}

// parse returns false for other packets, and for those with options or extension headers, which a Direct does not send.
func parse(packet []byte) (transport, bool) {
	var p transport
	var payload []byte
	switch header.IPVersion(packet) {
	case header.IPv4Version:
		ip := header.IPv4(packet)
		if !ip.IsValid(len(packet)) || ip.HeaderLength() != header.IPv4MinimumSize || ip.More() || ip.FragmentOffset() != 0 {
			return p, false
		}
		p.from, p.to = netip.AddrFrom4(ip.SourceAddress().As4()), netip.AddrFrom4(ip.DestinationAddress().As4())
		p.protocol, payload = ip.TransportProtocol(), ip.Payload()
	case header.IPv6Version:
		ip := header.IPv6(packet)
		if !ip.IsValid(len(packet)) {
			return p, false
		}
		p.from, p.to = netip.AddrFrom16(ip.SourceAddress().As16()), netip.AddrFrom16(ip.DestinationAddress().As16())
		p.protocol, payload = ip.TransportProtocol(), ip.Payload()
	}
	switch {
	case p.protocol == tcp.ProtocolNumber && len(payload) >= header.TCPMinimumSize:
		p.fromPort, p.toPort = header.TCP(payload).SourcePort(), header.TCP(payload).DestinationPort()
	case p.protocol == udp.ProtocolNumber && len(payload) >= header.UDPMinimumSize:
		p.fromPort, p.toPort = header.UDP(payload).SourcePort(), header.UDP(payload).DestinationPort()
	default:
		return p, false
	}
	return p, true
}
