package network

import (
	"bytes"
	"encoding/binary"
	"net/netip"
)

// Refusal is the reason for dropping a frame.
type Refusal string

const (
	// Malformed means that the frame is not an IP packet in an Ethernet frame, is longer than the network allows,
	// or has headers that a router must inspect.
	Malformed Refusal = "Malformed"
	// ForeignMAC means that the sender's Ethernet address is not the port's.
	ForeignMAC Refusal = "ForeignMAC"
	// ForeignAddress means that the sender's IP address is not the port's.
	ForeignAddress Refusal = "ForeignAddress"
	// LinkOnly means that the packet is only meaningful on its own link: ARP, neighbor discovery, router
	// advertisements, DHCP, or a packet for more than one address.
	LinkOnly Refusal = "LinkOnly"
	// Expired means that the hop limit has been reached.
	Expired Refusal = "Expired"
	// NoGuest means that no port has the destination address.
	NoGuest Refusal = "NoGuest"
	// Unreachable means that the host of the destination does not respond.
	Unreachable Refusal = "Unreachable"
	// QueueFull means that the receiver is slower than the senders.
	QueueFull Refusal = "QueueFull"
)

// maxFrame is the length of the longest frame in bytes, on a link with an MTU of 1500.
const maxFrame = 1514

// Offsets and sizes of headers, in bytes.
const (
	etherSource, etherType, etherHeader = 6, 12, 14

	header4, ttl4, protocol4, checksum4, source4, destination4 = 20, 8, 9, 10, 12, 16
	header6, protocol6, hops6, source6, destination6           = 40, 6, 7, 8, 24

	arpLength, arpSenderMAC, arpSenderIP, arpKinds = 28, 8, 14, 6
)

const (
	typeIPv4 = 0x0800
	typeARP  = 0x0806
	typeRARP = 0x8035
	typeIPv6 = 0x86dd
)

const (
	protocolHopByHop = 0
	protocolUDP      = 17
	protocolRouting  = 43
	protocolFragment = 44
	protocolICMPv6   = 58
	protocolOptions  = 60

	portDHCPClient   = 68
	portDHCPv6Client = 546

	fragmentHeader = 8
)

// ethernetIPv4 is the beginning of an ARP packet about IPv4 addresses on Ethernet.
var ethernetIPv4 = []byte{0, 1, 8, 0, 6, 4}

// Inspect returns the destination of a frame that a guest may send. The destination is the zero Addr if the frame
// only announces where the guest is. The refusal is empty if the frame is allowed.
func (p Port) Inspect(frame []byte) (netip.Addr, Refusal) {
	if len(frame) < etherHeader || len(frame) > maxFrame {
		return netip.Addr{}, Malformed
	}
	if !bytes.Equal(frame[etherSource:etherType], p.MAC) {
		return netip.Addr{}, ForeignMAC
	}
	switch content := frame[etherHeader:]; binary.BigEndian.Uint16(frame[etherType:]) {
	case typeARP, typeRARP:
		return netip.Addr{}, p.inspectARP(content)
	case typeIPv4, typeIPv6:
		to, refusal := p.InspectPacket(content)
		if refusal == "" && expired(content) {
			refusal = Expired
		}
		return to, refusal
	}
	return netip.Addr{}, Malformed
}

// InspectPacket returns the destination of an IP packet that a guest may send to another guest. Unlike Inspect, it
// ignores the hop limit: another host may already have forwarded the packet. The packet may be followed by padding.
func (p Port) InspectPacket(packet []byte) (netip.Addr, Refusal) {
	if len(packet) > 0 && packet[0]>>4 == 6 {
		return p.inspect6(packet)
	}
	return p.inspect4(packet)
}

// expired reports whether a packet that InspectPacket has allowed must not be forwarded again.
func expired(packet []byte) bool {
	if packet[0]>>4 == 6 {
		return packet[hops6] <= 1
	}
	return packet[ttl4] <= 1
}

// inspectARP accepts the announcement of a guest that has moved to another host.
func (p Port) inspectARP(data []byte) Refusal {
	if len(data) < arpLength || !bytes.Equal(data[:arpKinds], ethernetIPv4) {
		return Malformed
	}
	if !bytes.Equal(data[arpSenderMAC:arpSenderIP], p.MAC) {
		return ForeignMAC
	}
	sender := netip.AddrFrom4([4]byte(data[arpSenderIP:]))
	if !sender.IsUnspecified() && sender != p.IPv4 {
		return ForeignAddress
	}
	return ""
}

func (p Port) inspect4(data []byte) (netip.Addr, Refusal) {
	if len(data) < header4 || data[0]>>4 != 4 {
		return netip.Addr{}, Malformed
	}
	header, total := int(data[0]&0xf)*4, int(binary.BigEndian.Uint16(data[2:]))
	// IP options could request another route.
	if header != header4 || total < header || total > len(data) {
		return netip.Addr{}, Malformed
	}
	from, to := netip.AddrFrom4([4]byte(data[source4:])), netip.AddrFrom4([4]byte(data[destination4:]))
	const offset = 0x1fff
	first := binary.BigEndian.Uint16(data[6:])&offset == 0
	switch {
	case from != p.IPv4:
		return to, ForeignAddress
	case !unicast(to):
		return to, LinkOnly
	case first && data[protocol4] == protocolUDP && isUDPTo(data[header:total], portDHCPClient):
		return to, LinkOnly
	}
	return to, ""
}

func (p Port) inspect6(data []byte) (netip.Addr, Refusal) {
	if len(data) < header6 || data[0]>>4 != 6 {
		return netip.Addr{}, Malformed
	}
	end := header6 + int(binary.BigEndian.Uint16(data[4:]))
	if end > len(data) {
		return netip.Addr{}, Malformed
	}
	from, to := netip.AddrFrom16([16]byte(data[source6:])), netip.AddrFrom16([16]byte(data[destination6:]))
	switch {
	case from != p.IPv6:
		return to, ForeignAddress
	case !unicast(to):
		return to, LinkOnly
	}
	return to, inspectPayload6(data[protocol6], data[header6:end])
}

// inspectPayload6 rejects packets that have a meaning only on a link. It inspects whole packets and the first of
// several fragments.
func inspectPayload6(protocol byte, payload []byte) Refusal {
	if protocol == protocolFragment {
		if len(payload) < fragmentHeader {
			return Malformed
		}
		const offset = 0xfff8
		if binary.BigEndian.Uint16(payload[2:])&offset != 0 {
			return ""
		}
		protocol, payload = payload[0], payload[fragmentHeader:]
	}
	switch protocol {
	case protocolHopByHop, protocolRouting, protocolOptions, protocolFragment:
		return Malformed
	case protocolICMPv6:
		// Neighbor discovery: RFC 4861, section 4.
		const first, last = 133, 137
		if len(payload) == 0 || payload[0] >= first && payload[0] <= last {
			return LinkOnly
		}
	case protocolUDP:
		if isUDPTo(payload, portDHCPv6Client) {
			return LinkOnly
		}
	}
	return ""
}

// unicast reports whether an address may belong to a single guest and is valid beyond one link.
func unicast(address netip.Addr) bool { return address.IsGlobalUnicast() }

// isUDPTo reports whether the payload is a UDP datagram to the port. It also returns true if the payload is too
// short.
func isUDPTo(payload []byte, port uint16) bool {
	return len(payload) < 4 || binary.BigEndian.Uint16(payload[2:]) == port
}

// route rewrites a frame that Inspect has allowed, for delivery to the port.
func (p Port) route(frame []byte) {
	copy(frame, p.MAC)
	copy(frame[etherSource:], gatewayMAC)
	forward(frame[etherHeader:])
}

// forward decrements the hop limit of a packet that Inspect has allowed.
func forward(packet []byte) {
	if packet[0]>>4 == 6 {
		packet[hops6]--
		return
	}
	packet[ttl4]--
	// RFC 1624: the checksum changes by as much as the 16 bits that contain the TTL.
	sum := uint32(binary.BigEndian.Uint16(packet[checksum4:])) + 0x100
	binary.BigEndian.PutUint16(packet[checksum4:], uint16(sum+sum>>16))
}

// gatewayMAC is the sender of routed frames. Guests send their responses to their own gateway, or to this address if
// they treat the network as their own link.
var gatewayMAC = []byte{0x02, 0, 0, 0, 0, 0x01}
