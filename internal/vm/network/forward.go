package network

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

// Values of IPv4 fragments (RFC 791) and of errors about packets that are too long (RFC 1191 and RFC 8201).
const (
	fragment4         = 6
	flagDontFragment  = 0x4000
	flagMoreFragments = 0x2000
	offsetMask        = 0x1fff
	offsetUnit        = 8

	protocolICMP   = 1
	icmpHeader     = 8
	icmpMTU        = 6
	icmpv6MTU      = 4
	unreachable    = 3
	needsFragments = 4
	typeTooBig     = 2

	// maxError4 and maxError6 are the lengths of the longest ICMP errors, in bytes.
	maxError4, maxError6 = 576, 1280
)

// MinMTU is the smallest MTU of a network with IPv6, in bytes.
const MinMTU = 1280

// Forward prepares a frame that Inspect has allowed for a network that may have a smaller MTU than the guest's link, as
// a router does. It returns the packets to send, which may share memory with the frame. If the packet is too long and
// must not be fragmented, it returns no packets. The response is then a frame that reports the MTU to the guest; it is nil if
// the packet must not cause an error, like an ICMP error. The MTU must be at least MinMTU.
func (p Port) Forward(frame []byte, mtu int) (packets [][]byte, response []byte) {
	packet := frame[etherHeader:]
	if packet[0]>>4 == 6 {
		packet = packet[:header6+int(binary.BigEndian.Uint16(packet[4:]))]
		if len(packet) > mtu {
			return nil, p.tooBig6(packet, mtu)
		}
		forward(packet)
		return [][]byte{packet}, nil
	}
	packet = packet[:binary.BigEndian.Uint16(packet[2:])]
	if len(packet) > mtu && binary.BigEndian.Uint16(packet[fragment4:])&flagDontFragment != 0 {
		return nil, p.tooBig4(packet, mtu)
	}
	forward(packet)
	if len(packet) <= mtu {
		return [][]byte{packet}, nil
	}
	return fragments(packet, mtu), nil
}

// Frame returns a frame with a packet for the guest. It does not change the packet's hop limit.
func (p Port) Frame(packet []byte) []byte {
	kind := []byte{typeIPv4 >> 8, typeIPv4 & 0xff}
	if packet[0]>>4 == 6 {
		kind = []byte{typeIPv6 >> 8, typeIPv6 & 0xff}
	}
	return slices.Concat(p.MAC, gatewayMAC, kind, packet)
}

// fragments splits an IPv4 packet, which may be a fragment itself.
func fragments(packet []byte, mtu int) [][]byte {
	const header = header4 // InspectPacket allows no options
	size := (mtu - header) / offsetUnit * offsetUnit
	field := binary.BigEndian.Uint16(packet[fragment4:])
	var all [][]byte
	for rest := packet[header:]; len(rest) > 0; {
		part := rest[:min(size, len(rest))]
		offset := uint16((len(packet) - header - len(rest)) / offsetUnit)
		rest = rest[len(part):]
		more := field & flagMoreFragments
		if len(rest) > 0 {
			more = flagMoreFragments
		}
		next := slices.Concat(packet[:header], part)
		binary.BigEndian.PutUint16(next[2:], uint16(len(next)))
		binary.BigEndian.PutUint16(next[fragment4:], more|field&offsetMask+offset)
		setChecksum4(next)
		all = append(all, next)
	}
	return all
}

// tooBig4 returns the error "fragmentation needed".
func (p Port) tooBig4(packet []byte, mtu int) []byte {
	if binary.BigEndian.Uint16(packet[fragment4:])&offsetMask != 0 || packet[protocol4] == protocolICMP && isError4(packet[header4:]) {
		return nil
	}
	quoted := packet[:min(len(packet), maxError4-header4-icmpHeader)]
	message := slices.Concat([]byte{unreachable, needsFragments, 0, 0, 0, 0, 0, 0}, quoted)
	binary.BigEndian.PutUint16(message[icmpMTU:], uint16(mtu))
	binary.BigEndian.PutUint16(message[2:], ^sum(0, message))
	header := make([]byte, header4)
	header[0], header[ttl4], header[protocol4] = 0x45, hopsOfErrors, protocolICMP
	binary.BigEndian.PutUint16(header[2:], uint16(header4+len(message)))
	copy(header[source4:], p.gateway(netip.AddrFrom4([4]byte(packet[destination4:]))).AsSlice())
	copy(header[destination4:], packet[source4:destination4])
	setChecksum4(header)
	return p.Frame(slices.Concat(header, message))
}

// tooBig6 returns the error "packet too big".
func (p Port) tooBig6(packet []byte, mtu int) []byte {
	if packet[protocol6] == protocolICMPv6 && isError6(packet[header6:]) {
		return nil
	}
	quoted := packet[:min(len(packet), maxError6-header6-icmpHeader)]
	message := slices.Concat([]byte{typeTooBig, 0, 0, 0, 0, 0, 0, 0}, quoted)
	binary.BigEndian.PutUint32(message[icmpv6MTU:], uint32(mtu))
	header := make([]byte, header6)
	header[0], header[protocol6], header[hops6] = 0x60, protocolICMPv6, hopsOfErrors
	binary.BigEndian.PutUint16(header[4:], uint16(len(message)))
	copy(header[source6:], p.gateway(netip.AddrFrom16([16]byte(packet[destination6:]))).AsSlice())
	copy(header[destination6:], packet[source6:destination6])
	binary.BigEndian.PutUint16(message[2:], checksum6(header, message))
	return p.Frame(slices.Concat(header, message))
}

// hopsOfErrors is the hop limit of ICMP errors.
const hopsOfErrors = 64

// gateway returns the router for packets to an address. A port without networks has no gateway; errors then come from
// the destination.
func (p Port) gateway(to netip.Addr) netip.Addr {
	for _, n := range p.Networks {
		if n.Prefix.Addr().Is4() == to.Is4() && len(n.OnLink) > 0 {
			return n.OnLink[0]
		}
	}
	return to
}

// isError4 reports whether an ICMP message must not cause an error (RFC 1122, section 3.2.2).
func isError4(message []byte) bool {
	if len(message) == 0 {
		return true
	}
	switch message[0] {
	case 3, 4, 5, 11, 12:
		return true
	}
	return false
}

// isError6 reports whether an ICMPv6 message must not cause an error (RFC 4443, section 2.4).
func isError6(message []byte) bool {
	const firstInformational = 128
	return len(message) == 0 || message[0] < firstInformational
}

// setChecksum4 sets the checksum of an IPv4 header without options.
func setChecksum4(packet []byte) {
	binary.BigEndian.PutUint16(packet[checksum4:], 0)
	binary.BigEndian.PutUint16(packet[checksum4:], ^sum(0, packet[:header4]))
}

// sum adds the 16-bit words of data to a ones' complement sum (RFC 1071).
func sum(start uint32, data []byte) uint16 {
	total := start
	for ; len(data) > 1; data = data[2:] {
		total += uint32(binary.BigEndian.Uint16(data))
	}
	if len(data) > 0 {
		total += uint32(data[0]) << 8
	}
	for total>>16 != 0 {
		total = total&0xffff + total>>16
	}
	return uint16(total)
}
