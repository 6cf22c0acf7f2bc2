package packetsocket

import (
	"bytes"
	"encoding/binary"
	"iter"
	"slices"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/millwright-dev/millwright/internal/vm/network"
)

// Sizes and offsets in frames, in bytes.
const (
	macSize        = 6
	ethernetSource = 6
	ethernetType   = 12
	ethernetHeader = 14
	minTCPHeader   = 20
	udpHeader      = 8
)

// reserved is the prefix of the addresses to which bridges never forward frames, such as those of the spanning tree protocol and
// of pause frames (IEEE 802.1Q, section 8.6.3). The last byte is at most reservedLast.
var reserved = []byte{0x01, 0x80, 0xc2, 0, 0}

const reservedLast = 0x0f

func isReserved(frame []byte) bool {
	return bytes.HasPrefix(frame, reserved) && frame[len(reserved)] <= reservedLast
}

// inspect returns why a frame of the guest must not leave the Pod, or "" if it may.
func (g Guest) inspect(frame []byte) network.Refusal {
	switch {
	case len(frame) < ethernetHeader:
		return network.Malformed
	case !bytes.Equal(frame[ethernetSource:ethernetType], g.MAC):
		return network.ForeignMAC
	case isReserved(frame):
		return network.LinkOnly
	}
	return ""
}

// receives reports whether a frame of the interface is for the guest.
func (g Guest) receives(frame []byte) bool {
	if len(frame) < ethernetHeader || isReserved(frame) {
		return false
	}
	const group = 1
	return frame[0]&group != 0 || bytes.Equal(frame[:macSize], g.MAC)
}

// vnetHeaderSize is the size of the header that precedes a frame, struct virtio_net_hdr. Its numbers have the byte
// order of the host.
const vnetHeaderSize = 10

// Values in the header.
const (
	needsChecksum = 1

	gsoNone = 0
	gsoTCP4 = 1
	gsoTCP6 = 4
	gsoUDP  = 5    // segments of UDP
	gsoECN  = 0x80 // in addition to a type
)

// frames returns the complete frames for one that the kernel has delivered: the kernel omits checksums and merges segments.
// Each frame is valid until the next one. Frames that cannot be completed are dropped.
func frames(delivered []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		flags, kind := delivered[0], delivered[1]&^gsoECN
		frame := delivered[vnetHeaderSize:]
		switch {
		case kind != gsoNone:
			segment(frame, kind, int(binary.NativeEndian.Uint16(delivered[4:])), yield)
		case flags&needsChecksum == 0:
			yield(frame)
		case addChecksum(frame, int(binary.NativeEndian.Uint16(delivered[6:])), int(binary.NativeEndian.Uint16(delivered[8:]))):
			yield(frame)
		}
	}
}

// noZero replaces the checksum 0, which in UDP means that a datagram has no checksum. In one's complement arithmetic, both are
// zero, so TCP accepts noZero, too.
const noZero = 0xffff

// addChecksum completes the checksum of the frame from start to its end. The field of the checksum, at the given offset,
// contains the sum of the pseudo-header.
func addChecksum(frame []byte, start, offset int) bool {
	if start+offset+2 > len(frame) {
		return false
	}
	sum := ^checksum.Checksum(frame[start:], 0)
	if sum == 0 {
		sum = noZero
	}
	checksum.Put(frame[start+offset:], sum)
	return true
}

// segments is a frame whose payload must be divided among several frames.
type segments struct {
	// headers are all headers of the frame, up to the payload.
	headers []byte
	payload []byte
	// transport is the offset of the transport header.
	transport int
	tcp       bool
}

// segment divides a frame into frames with at most size bytes of payload, like a network card.
func segment(frame []byte, kind byte, size int, yield func([]byte) bool) {
	whole, ok := parseSegments(frame, kind)
	if !ok || size == 0 {
		return
	}
	number := 0
	for chunk := range slices.Chunk(whole.payload, size) {
		if !yield(whole.part(number, number*size, chunk)) {
			return
		}
		number++
	}
}

func parseSegments(frame []byte, kind byte) (segments, bool) {
	s := segments{tcp: kind == gsoTCP4 || kind == gsoTCP6}
	if len(frame) < ethernetHeader+header.IPv4MinimumSize || !s.tcp && kind != gsoUDP {
		return s, false
	}
	packet, protocol := frame[ethernetHeader:], binary.BigEndian.Uint16(frame[ethernetType:])
	switch version := header.IPVersion(packet); {
	case protocol == unix.ETH_P_IP && version == header.IPv4Version:
		s.transport = ethernetHeader + int(header.IPv4(packet).HeaderLength())
	case protocol == unix.ETH_P_IPV6 && version == header.IPv6Version: // the kernel does not join packets with extension headers
		s.transport = ethernetHeader + header.IPv6MinimumSize
	default:
		return s, false
	}
	end := s.transport + udpHeader
	if s.tcp && len(frame) >= s.transport+minTCPHeader {
		end = s.transport + int(header.TCP(frame[s.transport:]).DataOffset())
	}
	if end > len(frame) || s.tcp && end < s.transport+minTCPHeader || s.transport < ethernetHeader+header.IPv4MinimumSize {
		return s, false
	}
	s.headers, s.payload = frame[:end], frame[end:]
	return s, true
}

// part returns the frame with the given number. Its payload is a chunk at an offset of the whole payload.
func (s segments) part(number, offset int, chunk []byte) []byte {
	frame := slices.Concat(s.headers, chunk)
	packet, length := frame[ethernetHeader:], uint16(len(frame)-s.transport)
	var pseudo uint16
	if header.IPVersion(packet) == header.IPv4Version {
		ip := header.IPv4(packet)
		ip.SetTotalLength(uint16(len(packet)))
		ip.SetID(ip.ID() + uint16(number))
		ip.SetChecksum(0)
		ip.SetChecksum(^ip.CalculateChecksum())
		pseudo = header.PseudoHeaderChecksum(tcpip.TransportProtocolNumber(ip.Protocol()), ip.SourceAddress(), ip.DestinationAddress(), length)
	} else {
		ip := header.IPv6(packet)
		ip.SetPayloadLength(length)
		pseudo = header.PseudoHeaderChecksum(ip.TransportProtocol(), ip.SourceAddress(), ip.DestinationAddress(), length)
	}
	if !s.tcp {
		udp := header.UDP(frame[s.transport:])
		udp.SetLength(length)
		udp.SetChecksum(0)
		udp.SetChecksum(^checksum.Checksum(udp, pseudo))
		if udp.Checksum() == 0 {
			udp.SetChecksum(noZero)
		}
		return frame
	}
	tcp := header.TCP(frame[s.transport:])
	tcp.SetSequenceNumber(tcp.SequenceNumber() + uint32(offset))
	tcp.SetFlags(uint8(s.flags(tcp.Flags(), number, offset+len(chunk))))
	tcp.SetChecksum(0)
	tcp.SetChecksum(^checksum.Checksum(tcp, pseudo))
	return frame
}

// flagCWR reports a reduced congestion window. Only the first segment has it.
const flagCWR header.TCPFlags = 0x80

// flags returns the flags of the segment with the given number. end is the offset at which its payload is complete.
func (s segments) flags(whole header.TCPFlags, number, end int) header.TCPFlags {
	if number > 0 {
		whole &^= flagCWR
	}
	if end < len(s.payload) {
		whole &^= header.TCPFlagFin | header.TCPFlagPsh
	}
	return whole
}

// vlanTag is the tag of a frame: protocol and number, in network byte order. It is empty if the frame has none.
type vlanTag struct{ bytes []byte }

// tagOf returns the tag in the control messages of a frame.
func tagOf(control []byte) vlanTag {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return vlanTag{}
	}
	for _, message := range messages {
		// struct tpacket_auxdata: the status at 0, the tag at 16, its protocol at 18
		if message.Header.Level != unix.SOL_PACKET || message.Header.Type != unix.PACKET_AUXDATA || len(message.Data) < 20 {
			continue
		}
		if binary.NativeEndian.Uint32(message.Data)&unix.TP_STATUS_VLAN_VALID == 0 {
			continue
		}
		tag := binary.BigEndian.AppendUint16(nil, binary.NativeEndian.Uint16(message.Data[18:]))
		return vlanTag{binary.BigEndian.AppendUint16(tag, binary.NativeEndian.Uint16(message.Data[16:]))}
	}
	return vlanTag{}
}

// insert returns the frame with the tag. Without it, the guest would receive frames of a VLAN as untagged frames.
func (t vlanTag) insert(frame []byte) []byte {
	if len(t.bytes) == 0 {
		return frame
	}
	return slices.Concat(frame[:ethernetType], t.bytes, frame[ethernetType:])
}
