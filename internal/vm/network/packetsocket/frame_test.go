package packetsocket

import (
	"bytes"
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// delivered returns a frame as the kernel delivers it, with segments of 1000 bytes.
func delivered(kind byte, transport []byte, protocol tcpip.TransportProtocolNumber, payload []byte) []byte {
	virtio := make([]byte, vnetHeaderSize)
	virtio[0], virtio[1] = needsChecksum, kind
	binary.NativeEndian.PutUint16(virtio[4:], 1000)
	ip := header.IPv4(make([]byte, header.IPv4MinimumSize))
	ip.Encode(&header.IPv4Fields{
		TotalLength: uint16(len(ip) + len(transport) + len(payload)), ID: 0xffff, TTL: 64, Protocol: uint8(protocol),
		SrcAddr: tcpip.AddrFrom4([4]byte{192, 0, 2, 1}), DstAddr: tcpip.AddrFrom4([4]byte{192, 0, 2, 22}),
	})
	ethernet := binary.BigEndian.AppendUint16(append(append([]byte{}, guestMAC...), otherMAC...), unix.ETH_P_IP)
	return bytes.Join([][]byte{virtio, ethernet, ip, transport, payload}, nil)
}

// TestFrames_SegmentsTCP checks the headers of segments: only the first one reports a reduced congestion window, and only
// the last one closes the connection.
func TestFrames_SegmentsTCP(t *testing.T) {
	tcp := header.TCP(make([]byte, header.TCPMinimumSize))
	tcp.Encode(&header.TCPFields{SeqNum: 0xffffff00, DataOffset: header.TCPMinimumSize, Flags: header.TCPFlagAck | header.TCPFlagPsh | header.TCPFlagFin | flagCWR})
	payload := bytes.Repeat([]byte("0123456789"), 250)
	var got []byte
	wantFlags := []header.TCPFlags{header.TCPFlagAck | flagCWR, header.TCPFlagAck, header.TCPFlagAck | header.TCPFlagPsh | header.TCPFlagFin}
	number := 0
	for frame := range frames(delivered(gsoTCP4|gsoECN, tcp, header.TCPProtocolNumber, payload)) {
		ip := header.IPv4(frame[ethernetHeader:])
		part := header.TCP(ip.Payload())
		if !ip.IsChecksumValid() || !part.IsChecksumValid(ip.SourceAddress(), ip.DestinationAddress(), checksum.Checksum(part.Payload(), 0), uint16(len(part.Payload()))) {
			t.Errorf("frame %d has a wrong checksum", number)
		}
		if part.SequenceNumber() != uint32(0xffffff00+int64(len(got))) || part.Flags() != wantFlags[number] || ip.ID() != uint16(0xffff+number) {
			t.Errorf("frame %d: sequence number %d, flags %v, ID %d", number, part.SequenceNumber(), part.Flags(), ip.ID())
		}
		got = append(got, part.Payload()...)
		number++
	}
	if number != len(wantFlags) || !bytes.Equal(got, payload) {
		t.Errorf("%d frames with %d bytes", number, len(got))
	}
}

// TestFrames_SegmentsUDP checks that merged datagrams become separate frames.
func TestFrames_SegmentsUDP(t *testing.T) {
	udp := header.UDP(make([]byte, header.UDPMinimumSize))
	udp.Encode(&header.UDPFields{SrcPort: 1, DstPort: 2})
	payload := bytes.Repeat([]byte("0123456789"), 150)
	var got []byte
	for frame := range frames(delivered(gsoUDP, udp, header.UDPProtocolNumber, payload)) {
		ip := header.IPv4(frame[ethernetHeader:])
		part := header.UDP(ip.Payload())
		if !ip.IsChecksumValid() || !part.IsChecksumValid(ip.SourceAddress(), ip.DestinationAddress(), checksum.Checksum(part.Payload(), 0)) {
			t.Error("a frame has a wrong checksum")
		}
		if int(part.Length()) != len(part) || len(part.Payload()) > 1000 {
			t.Errorf("a datagram of %d bytes, with length %d", len(part), part.Length())
		}
		got = append(got, part.Payload()...)
	}
	if !bytes.Equal(got, payload) {
		t.Errorf("got %d bytes", len(got))
	}
}

// FuzzFrames checks that no frame crashes the hypervisor, and that each returned frame has headers.
func FuzzFrames(f *testing.F) {
	f.Add(delivered(gsoTCP4, make([]byte, header.TCPMinimumSize), header.TCPProtocolNumber, make([]byte, 1500)))
	f.Add(delivered(gsoUDP, make([]byte, header.UDPMinimumSize), header.UDPProtocolNumber, nil))
	f.Add(delivered(gsoNone, nil, 0, nil))
	f.Fuzz(func(t *testing.T, content []byte) {
		if len(content) < vnetHeaderSize+ethernetHeader {
			return // not for any guest
		}
		for frame := range frames(content) {
			if len(frame) < ethernetHeader {
				t.Errorf("a frame of %d bytes", len(frame))
			}
		}
	})
}
