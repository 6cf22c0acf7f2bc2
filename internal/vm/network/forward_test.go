package network

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
)

// forwarded forwards a frame of alice over a network with the smallest MTU.
func forwarded(t *testing.T, frame []byte) (packets [][]byte, response []byte) {
	t.Helper()
	if _, refusal := alice.Inspect(frame); refusal != "" {
		t.Fatal(refusal)
	}
	return onOneLink(alice).Forward(frame, MinMTU)
}

// verify4 returns the content of an IPv4 packet, whose checksum it verifies.
func verify4(t *testing.T, packet []byte) (content []byte) {
	t.Helper()
	if got := sumOf(packet[:header4]); got != 0xffff {
		t.Errorf("the checksum of %x is wrong", packet[:header4])
	}
	if got := int(binary.BigEndian.Uint16(packet[2:])); got != len(packet) {
		t.Errorf("the length of the packet is %d, and the header has %d", len(packet), got)
	}
	return packet[header4:]
}

func TestForward_ShortPackets(t *testing.T) {
	for _, to := range []string{"10.77.0.11", "fd77::b"} {
		frame := append(udp(to, 7), 1, 2, 3) // padding, which is not part of the packet
		want := slices.Clone(frame[etherHeader : len(frame)-3])
		packets, response := forwarded(t, frame)
		if len(packets) != 1 || response != nil {
			t.Fatalf("%d packets and the response %x", len(packets), response)
		}
		forward(want)
		if !bytes.Equal(packets[0], want) {
			t.Errorf("forwarded %x, want %x", packets[0], want)
		}
	}
}

func TestForward_Fragments(t *testing.T) {
	payload := make([]byte, 2*MinMTU)
	for i := range payload {
		payload[i] = byte(i >> 4)
	}
	for name, test := range map[string]struct {
		field uint16 // flags and offset of the packet
		more  bool   // after the last fragment
	}{
		"a whole packet":    {0, false},
		"the last fragment": {100, false},
		"another fragment":  {flagMoreFragments | 100, true},
	} {
		t.Run(name, func(t *testing.T) {
			frame := ip("10.77.0.11", 253, payload...)
			frame = with(frame, etherHeader+fragment4, byte(test.field>>8), byte(test.field))
			packets, response := alice.Forward(frame, MinMTU)
			if response != nil || len(packets) < 3 {
				t.Fatalf("%d packets and the response %x", len(packets), response)
			}
			var got []byte
			for i, packet := range packets {
				field := binary.BigEndian.Uint16(packet[fragment4:])
				if len(packet) > MinMTU || packet[ttl4] != 63 {
					t.Errorf("fragment %d: %d bytes, TTL %d", i, len(packet), packet[ttl4])
				}
				if offset := int(field&offsetMask) - int(test.field&offsetMask); offset*offsetUnit != len(got) {
					t.Errorf("fragment %d: offset %d after %d bytes", i, offset*offsetUnit, len(got))
				}
				if more := field&flagMoreFragments != 0; more != (i < len(packets)-1 || test.more) {
					t.Errorf("fragment %d: more fragments: %t", i, more)
				}
				got = append(got, verify4(t, packet)...)
			}
			if !bytes.Equal(got, payload) {
				t.Error("the fragments have another content")
			}
		})
	}
}

func TestForward_ReportsMTU4(t *testing.T) {
	frame := with(ip("10.77.0.11", protocolUDP, append([]byte{0, 9, 0, 9}, make([]byte, 1400)...)...), etherHeader+fragment4, flagDontFragment>>8, 0)
	packets, response := forwarded(t, frame)
	if len(packets) > 0 || response == nil || !bytes.Equal(response[:etherSource], alice.MAC) {
		t.Fatalf("%d packets and the response %x", len(packets), response)
	}
	packet := response[etherHeader:]
	message := verify4(t, packet)
	if from := netip.AddrFrom4([4]byte(packet[source4:])); from != netip.MustParseAddr("10.77.0.2") {
		t.Errorf("the error is from %s", from)
	}
	if to := netip.AddrFrom4([4]byte(packet[destination4:])); to != alice.IPv4 || packet[protocol4] != protocolICMP {
		t.Errorf("protocol %d to %s", packet[protocol4], to)
	}
	if sumOf(message) != 0xffff || message[0] != 3 || message[1] != 4 || binary.BigEndian.Uint16(message[6:]) != MinMTU {
		t.Errorf("the message is %x", message[:8])
	}
	if quoted := message[icmpHeader:]; !bytes.HasPrefix(frame[etherHeader:], quoted) || len(quoted) < header4+8 || len(packet) > 576 {
		t.Errorf("a packet of %d bytes quotes %x", len(packet), quoted)
	}
}

func TestForward_ReportsMTU6(t *testing.T) {
	frame := ip("fd77::b", protocolUDP, append([]byte{0, 9, 0, 9}, make([]byte, 1400)...)...)
	packets, response := forwarded(t, frame)
	if len(packets) > 0 || response == nil {
		t.Fatalf("%d packets and the response %x", len(packets), response)
	}
	packet := response[etherHeader:]
	message := packet[header6:]
	if from := netip.AddrFrom16([16]byte(packet[source6:])); from != netip.MustParseAddr("fd77::2") {
		t.Errorf("the error is from %s", from)
	}
	if message[0] != 2 || binary.BigEndian.Uint32(message[4:]) != MinMTU || len(packet) > MinMTU {
		t.Errorf("a packet of %d bytes: %x", len(packet), message[:8])
	}
	if checksum6(packet[:header6], message) != 0 {
		t.Error("the checksum is wrong")
	}
	if quoted := message[icmpHeader:]; !bytes.HasPrefix(frame[etherHeader:], quoted) {
		t.Errorf("quotes %x", quoted)
	}
}

// TestForward_NoErrorsAboutErrors checks which packets are dropped without a response.
func TestForward_NoErrorsAboutErrors(t *testing.T) {
	payload := make([]byte, 1400)
	never := func(frame []byte) []byte { return with(frame, etherHeader+fragment4, flagDontFragment>>8, 0) }
	for name, test := range map[string]struct {
		frame    []byte
		responds bool
	}{
		"an ICMP error":    {never(ip("10.77.0.11", protocolICMP, append([]byte{3, 1}, payload...)...)), false},
		"a ping":           {never(ip("10.77.0.11", protocolICMP, append([]byte{8, 0}, payload...)...)), true},
		"a later fragment": {with(ip("10.77.0.11", protocolUDP, payload...), etherHeader+fragment4, flagDontFragment>>8, 9), false},
		"an ICMPv6 error":  {ip("fd77::b", protocolICMPv6, append([]byte{1, 0}, payload...)...), false},
		"a ping with IPv6": {ip("fd77::b", protocolICMPv6, append([]byte{128, 0}, payload...)...), true},
	} {
		t.Run(name, func(t *testing.T) {
			packets, response := forwarded(t, test.frame)
			if len(packets) > 0 || (response != nil) != test.responds {
				t.Errorf("%d packets and the response %x", len(packets), response)
			}
		})
	}
}

// A port without networks has no gateway, so the errors come from the destination.
func TestForward_WithoutGateway(t *testing.T) {
	frame := with(ip("10.77.0.11", protocolUDP, make([]byte, 1400)...), etherHeader+fragment4, flagDontFragment>>8, 0)
	_, response := alice.Forward(frame, MinMTU)
	if from := netip.AddrFrom4([4]byte(response[etherHeader+source4:])); from != bob.IPv4 {
		t.Errorf("the error is from %s", from)
	}
}

func TestInspectPacket_IgnoresHopLimit(t *testing.T) {
	for _, to := range []string{"10.77.0.11", "fd77::b"} {
		frame := udp(to, 7)
		at := etherHeader + ttl4
		if to == "fd77::b" {
			at = etherHeader + hops6
		}
		frame = with(frame, at, 1)
		if _, refusal := alice.Inspect(frame); refusal != Expired {
			t.Errorf("to %s: %q", to, refusal)
		}
		if got, refusal := alice.InspectPacket(frame[etherHeader:]); refusal != "" || got != netip.MustParseAddr(to) {
			t.Errorf("to %s: %s, %q", to, got, refusal)
		}
	}
	if _, refusal := alice.InspectPacket(nil); refusal != Malformed {
		t.Errorf("no packet: %q", refusal)
	}
}
