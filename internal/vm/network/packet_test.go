package network

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"testing"
)

// The ports that the tests use.
var (
	alice = Port{VM: "default/alice", MAC: net.HardwareAddr{2, 0, 0, 0, 0, 0xa}, IPv4: netip.MustParseAddr("10.77.0.10"), IPv6: netip.MustParseAddr("fd77::a")}
	bob   = Port{VM: "default/bob", MAC: net.HardwareAddr{2, 0, 0, 0, 0, 0xb}, IPv4: netip.MustParseAddr("10.77.0.11"), IPv6: netip.MustParseAddr("fd77::b")}
)

// ip returns a frame from alice to an address, with a valid checksum.
func ip(to string, protocol byte, payload ...byte) []byte {
	frame := append([]byte{2, 0, 0, 0, 0, 0xee}, alice.MAC...)
	destination := netip.MustParseAddr(to)
	if destination.Is6() {
		header := make([]byte, header6)
		header[0], header[protocol6], header[hops6] = 0x60, protocol, 64
		binary.BigEndian.PutUint16(header[4:], uint16(len(payload)))
		copy(header[source6:], alice.IPv6.AsSlice())
		copy(header[destination6:], destination.AsSlice())
		return slices.Concat(frame, []byte{0x86, 0xdd}, header, payload)
	}
	header := make([]byte, header4)
	header[0], header[ttl4], header[protocol4] = 0x45, 64, protocol
	binary.BigEndian.PutUint16(header[2:], uint16(header4+len(payload)))
	copy(header[source4:], alice.IPv4.AsSlice())
	copy(header[destination4:], destination.AsSlice())
	binary.BigEndian.PutUint16(header[checksum4:], ^sumOf(header))
	return slices.Concat(frame, []byte{8, 0}, header, payload)
}

func sumOf(header []byte) uint16 {
	sum := uint32(0)
	for i := 0; i < len(header); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(header[i:]))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}

func udp(to string, port uint16) []byte {
	payload := make([]byte, 12)
	binary.BigEndian.PutUint16(payload[2:], port)
	return ip(to, protocolUDP, payload...)
}

// with returns a copy of the frame with other bytes at an offset.
func with(frame []byte, at int, others ...byte) []byte {
	changed := slices.Clone(frame)
	copy(changed[at:], others)
	return changed
}

func arp(mac net.HardwareAddr, sender netip.Addr) []byte {
	return slices.Concat([]byte{255, 255, 255, 255, 255, 255}, alice.MAC, []byte{8, 6}, ethernetIPv4, []byte{0, 1}, mac, sender.AsSlice(), make([]byte, 6), bob.IPv4.AsSlice())
}

func TestInspect(t *testing.T) {
	const packet = etherHeader
	for name, test := range map[string]struct {
		frame []byte
		want  Refusal
	}{
		"UDP":                                 {udp("10.77.0.11", 7), ""},
		"UDP over IPv6":                       {udp("fd77::b", 7), ""},
		"ping":                                {ip("10.77.0.11", 1, 8, 0, 0, 0), ""},
		"ping over IPv6":                      {ip("fd77::b", protocolICMPv6, 128, 0, 0, 0), ""},
		"a later fragment":                    {with(udp("10.77.0.11", portDHCPClient), packet+6, 0, 1), ""},
		"a later fragment over IPv6":          {ip("fd77::b", protocolFragment, 17, 0, 0, 8, 0, 0, 0, 0), ""},
		"an announcement":                     {arp(alice.MAC, alice.IPv4), ""},
		"a probe for its address":             {arp(alice.MAC, netip.IPv4Unspecified()), ""},
		"another MAC":                         {with(udp("10.77.0.11", 7), etherSource, bob.MAC...), ForeignMAC},
		"another IPv4 address":                {with(udp("10.77.0.11", 7), packet+source4, 10, 77, 0, 11), ForeignAddress},
		"another IPv6 address":                {with(udp("fd77::b", 7), packet+source6, 0xfe, 0x80), ForeignAddress},
		"another MAC in ARP":                  {arp(bob.MAC, alice.IPv4), ForeignMAC},
		"another address in ARP":              {arp(alice.MAC, bob.IPv4), ForeignAddress},
		"a broadcast":                         {udp("255.255.255.255", 7), LinkOnly},
		"a multicast":                         {udp("224.0.0.251", 5353), LinkOnly},
		"a multicast over IPv6":               {udp("ff02::1", 7), LinkOnly},
		"a loopback address":                  {udp("127.0.0.1", 7), LinkOnly},
		"a link-local address":                {udp("fe80::1", 7), LinkOnly},
		"a DHCP response":                     {udp("10.77.0.11", portDHCPClient), LinkOnly},
		"a DHCPv6 response":                   {udp("fd77::b", portDHCPv6Client), LinkOnly},
		"a router advertisement":              {ip("fd77::b", protocolICMPv6, 134, 0, 0, 0), LinkOnly},
		"a neighbor advertisement":            {ip("fd77::b", protocolICMPv6, 136, 0, 0, 0), LinkOnly},
		"a redirect":                          {ip("fd77::b", protocolICMPv6, 137, 0, 0, 0), LinkOnly},
		"an advertisement in a fragment":      {ip("fd77::b", protocolFragment, protocolICMPv6, 0, 0, 1, 0, 0, 0, 0, 136, 0), LinkOnly},
		"an advertisement behind an option":   {ip("fd77::b", protocolOptions, protocolICMPv6, 0, 1, 4, 0, 0, 0, 0, 136, 0), Malformed},
		"a route in IPv6":                     {ip("fd77::b", protocolRouting, 17, 0, 0, 0, 0, 0, 0, 0), Malformed},
		"a route in IPv4":                     {with(udp("10.77.0.11", 7), packet, 0x46), Malformed},
		"the last hop":                        {with(udp("10.77.0.11", 7), packet+ttl4, 1), Expired},
		"the last hop over IPv6":              {with(udp("fd77::b", 7), packet+hops6, 0), Expired},
		"a VLAN":                              {with(udp("10.77.0.11", 7), etherType, 0x81, 0), Malformed},
		"shorter than its length field":       {udp("10.77.0.11", 7)[:40], Malformed},
		"IPv6 shorter than its length field":  {udp("fd77::b", 7)[:60], Malformed},
		"a frame that is too long":            {append(udp("10.77.0.11", 7), make([]byte, maxFrame)...), Malformed},
		"nothing":                             {nil, Malformed},
		"a header only":                       {udp("10.77.0.11", 7)[:etherHeader], Malformed},
		"IPv6 in IPv4's type":                 {with(udp("10.77.0.11", 7), packet, 0x65), Malformed},
		"a fragment of UDP without its ports": {ip("10.77.0.11", protocolUDP), LinkOnly},
	} {
		t.Run(name, func(t *testing.T) {
			to, got := alice.Inspect(test.frame)
			if got != test.want {
				t.Errorf("refusal = %q, want %q", got, test.want)
			}
			if announces := len(test.frame) > 13 && test.frame[13] == 6; got == "" && to.IsValid() == announces {
				t.Errorf("destination = %s", to)
			}
		})
	}
}

// A port without an address may not send from any address.
func TestPort_WithoutAddress(t *testing.T) {
	none := Port{VM: alice.VM, MAC: alice.MAC}
	for _, frame := range [][]byte{udp("10.77.0.11", 7), udp("fd77::b", 7), with(udp("10.77.0.11", 7), etherHeader+source4, 0, 0, 0, 0)} {
		if _, got := none.Inspect(frame); got != ForeignAddress {
			t.Errorf("refusal = %q", got)
		}
	}
}

func TestPacket_Route(t *testing.T) {
	for _, to := range []string{"10.77.0.11", "10.77.255.254", "192.168.0.1", "10.0.64.4"} {
		frame := udp(to, 7)
		bob.route(frame)
		header := frame[etherHeader : etherHeader+header4]
		if header[ttl4] != 63 || sumOf(header) != 0xffff {
			t.Errorf("to %s: TTL = %d, checksum over the header = %x", to, header[ttl4], sumOf(header))
		}
		if !slices.Equal(frame[:etherType], slices.Concat(bob.MAC, gatewayMAC)) {
			t.Errorf("Ethernet addresses = %x", frame[:etherType])
		}
	}
	frame := udp("fd77::b", 7)
	bob.route(frame)
	if hops := frame[etherHeader+hops6]; hops != 63 {
		t.Errorf("hop limit = %d", hops)
	}
}

// FuzzInspect checks that any frame can be inspected and that an allowed frame has alice's addresses.
func FuzzInspect(f *testing.F) {
	f.Add(udp("10.77.0.11", 7))
	f.Add(udp("fd77::b", 7))
	f.Add(arp(alice.MAC, alice.IPv4))
	f.Add(ip("fd77::b", protocolFragment, 17, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 7))
	f.Fuzz(func(t *testing.T, frame []byte) {
		to, refusal := alice.Inspect(frame)
		if refusal != "" {
			return
		}
		if !slices.Equal(frame[etherSource:etherType], alice.MAC) {
			t.Errorf("allowed another MAC address: %x", frame)
		}
		if !to.IsValid() {
			return
		}
		packet := frame[etherHeader:]
		from := alice.IPv4.AsSlice()
		at := source4
		if to.Is6() {
			from, at = alice.IPv6.AsSlice(), source6
		}
		if !slices.Equal(packet[at:at+len(from)], from) || !to.IsGlobalUnicast() {
			t.Errorf("allowed %x", frame)
		}
		bob.route(frame)
	})
}
