package firewall

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/millwright-dev/millwright/internal/specialaddress"
)

var testRules = Rules{
	Networks: []Network{
		{netip.MustParsePrefix("10.77.0.0/16"), netip.MustParseAddr("10.77.0.2"), netip.MustParseAddr("10.77.0.3")},
		{netip.MustParsePrefix("fd77::/64"), netip.MustParseAddr("fd77::2"), netip.MustParseAddr("fd77::3")},
	},
	HostPorts: []uint16{16443},
}

// ip returns a frame with an IP packet.
func ip(to string, protocol byte, payload ...byte) []byte {
	address := netip.MustParseAddr(to)
	if address.Is4() {
		header := []byte{0x45, 0, 0, byte(header4 + len(payload)), 0, 1, 0, 0, 64, protocol, 0, 0, 10, 77, 0, 16}
		return bytes.Join([][]byte{make([]byte, 12), {8, 0}, header, address.AsSlice(), payload}, nil)
	}
	header := append([]byte{0x60, 0, 0, 0, 0, byte(len(payload)), protocol, 64}, make([]byte, 16)...)
	return bytes.Join([][]byte{make([]byte, 12), {0x86, 0xdd}, header, address.AsSlice(), payload}, nil)
}

func udp(to string, port uint16) []byte {
	return ip(to, protocolUDP, binary.BigEndian.AppendUint16([]byte{18, 103}, port)...)
}

func tcp(to string, from, port uint16, flags byte) []byte {
	header := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, from), port)
	return ip(to, protocolTCP, append(header, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, flags, 0, 0, 0, 0, 0, 0)...)
}

// fragment converts an IPv4 frame to a fragment of a packet at an offset.
func fragment(frame []byte, offset uint16) []byte {
	binary.BigEndian.PutUint16(frame[ethernetHeader+6:], offset)
	return frame
}

func TestAllows(t *testing.T) {
	const syn, ack, rst = flagSYN, flagACK, 0x04
	for name, test := range map[string]struct {
		frame []byte
		want  bool
	}{
		"the API server":                              {tcp("10.77.0.2", 4711, 16443, syn), true},
		"the API server over IPv6":                    {tcp("fd77::2", 4711, 16443, syn), true},
		"its port at another address":                 {tcp("10.77.0.4", 4711, 16443, syn), false},
		"its port at another IPv6 address":            {tcp("fd77::4", 4711, 16443, syn), false},
		"its port over UDP":                           {udp("10.77.0.2", 16443), false},
		"another port":                                {tcp("10.77.0.2", 4711, 16480, syn), false},
		"another port over IPv6":                      {tcp("fd77::2", 4711, 16480, syn), false},
		"another port in an open connection":          {tcp("10.77.0.2", 4711, 16480, ack), false},
		"the loopback itself":                         {tcp("127.0.0.1", 4711, 16443, syn), false},
		"another address of the loopback":             {udp("127.9.9.9", 53), false},
		"the loopback of IPv6":                        {tcp("::1", 4711, 16443, syn), false},
		"no address":                                  {tcp("0.0.0.0", 4711, 16443, syn), false},
		"another unspecified address":                 {tcp("0.1.2.3", 4711, 16443, syn), false},
		"no IPv6 address":                             {tcp("::", 4711, 16443, syn), false},
		"IPv4 in IPv6":                                {tcp("::ffff:127.0.0.1", 4711, 16443, syn), false},
		"IPv4 in IPv6, the gateway":                   {tcp("::ffff:10.77.0.2", 4711, 16480, syn), false},
		"IPv4 in IPv6, the outside":                   {tcp("::ffff:192.0.2.1", 4711, 443, syn), false},
		"IPv4 in IPv6, for all neighbors":             {ip("::ffff:224.0.0.1", protocolICMPv6, 133, 0, 0, 0), false},
		"IPv4 in IPv6, older":                         {tcp("::127.0.0.1", 4711, 16443, syn), false},
		"a fragment to the gateway":                   {fragment(tcp("10.77.0.2", 4711, 16443, syn), 0x2000), false},
		"a later fragment of a packet to the gateway": {fragment(tcp("10.77.0.2", 4711, 16443, syn), 1), false},
		"a ping in fragments":                         {fragment(ip("10.77.0.2", protocolICMP, 8, 0, 0, 0), 0x2000), false},
		"a ping":                                      {ip("10.77.0.2", protocolICMP, 8, 0, 0, 0), true},
		"a neighbor":                                  {ip("ff02::1:ff00:2", protocolICMPv6, 135, 0, 0, 0), true},
		"a router":                                    {ip("fe80::2", protocolICMPv6, 133, 0, 0, 0), true},
		"a service at a link-local address":           {tcp("fe80::2", 4711, 16443, syn), false},
		"the name server":                             {udp("10.77.0.3", 53), true},
		"the name server over TCP":                    {tcp("10.77.0.3", 4711, 53, syn), true},
		"the name server over IPv6":                   {udp("fd77::3", 53), true},
		"another port of the name server":             {tcp("10.77.0.3", 4711, 16443, syn), false},
		"DHCP":                                        {udp("255.255.255.255", 67), true},
		"DHCP at the gateway":                         {udp("10.77.0.2", 67), true},
		"DHCP at another address":                     {udp("10.77.255.255", 67), false},
		"DHCP over IPv6":                              {udp("ff02::1:2", 547), true},
		"a broadcast":                                 {udp("255.255.255.255", 53), false},
		"a TCP broadcast":                             {tcp("255.255.255.255", 4711, 67, syn), false},
		"a multicast":                                 {udp("224.0.0.251", 5353), false},
		"an IPv6 multicast":                           {udp("ff02::1", 16443), false},
		"the outside":                                 {tcp("192.0.2.1", 4711, 443, syn), true},
		"the outside over IPv6":                       {tcp("2001:db8::1", 4711, 443, syn), true},
		"the metadata service of a cloud":             {tcp("169.254.169.254", 4711, 80, syn), false},
		"the metadata service of another cloud":       {tcp("100.100.100.200", 4711, 80, syn), false},
		"a metadata service over IPv6":                {tcp("fd00:ec2::254", 4711, 80, syn), false},
		"a metadata service in fragments":             {fragment(tcp("169.254.169.254", 4711, 80, syn), 0x2000), false},
		"the outside in fragments":                    {fragment(udp("192.0.2.1", 53), 0x2000), true},
		"an extension header before TCP":              {ip("fd77::2", 0, tcp("fd77::2", 4711, 16443, syn)[ethernetHeader:]...), false},
		"ARP":                                         {append(make([]byte, 12), 8, 6), true},
		"a VLAN":                                      {append(append(make([]byte, 12), 0x81, 0, 0, 1), tcp("10.77.0.2", 1, 16443, syn)[12:]...), false},
		"another protocol of Ethernet":                {append(make([]byte, 12), 0x88, 0xf8), false},
		"an incomplete frame":                         {make([]byte, 5), false},
		"an incomplete header":                        {tcp("192.0.2.1", 4711, 443, syn)[:30], false},
		"an incomplete packet":                        {tcp("192.0.2.1", 4711, 443, syn)[:40], false},
		"a header longer than the content":            {append(append(make([]byte, 12), 8, 0, 0x4f), make([]byte, 30)...), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := testRules.Allows(test.frame); got != test.want {
				t.Errorf("Allows() = %t, want %t", got, test.want)
			}
		})
	}
}

// special are addresses of metadata services, and other forms of the addresses that lead to the host or its link.
var special = []string{
	"169.254.169.254", "100.100.100.200", "168.63.129.16", "192.0.0.192", "100.96.0.96", "100.80.80.80", "0.1.2.3", "240.0.0.1",
	"fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254", "fd00:c1::a9fe:a9fe", "fd00:42::42", "fd00:a9fe:a9fe::1",
	"::a9fe:a9fe", "::ffff:a9fe:a9fe", "::ffff:0:a9fe:a9fe", "64:ff9b::a9fe:a9fe", "64:ff9b::7f00:1", "64:ff9b:1::a9fe:a9fe",
	"64:ff9b:1:a9fe:a9:fe00::", "2002:a9fe:a9fe::1", "2002:7f00:1::1", "2001:0:a9fe:a9fe::", "2001::5601:5601",
}

// No form of a special address is outside, even if it is written as another one or embedded in one.
func TestFirewall_SpecialAddresses(t *testing.T) {
	for _, address := range special {
		if testRules.Allows(tcp(address, 4711, 80, flagSYN)) {
			t.Errorf("%s is allowed", address)
		}
	}
	for _, address := range []string{"10.1.2.3", "100.64.0.1", "192.168.0.1", "fd00::1", "64:ff9b::808:808", "2002:808:808::1"} {
		if !testRules.Allows(tcp(address, 4711, 80, flagSYN)) {
			t.Errorf("%s is not allowed", address)
		}
	}
}

// FuzzAllows checks that the rules handle any frame and never allow a TCP connection to a special address, such as one
// of the loopback interface.
func FuzzAllows(f *testing.F) {
	f.Add(tcp("10.77.0.2", 4711, 16443, flagSYN))
	f.Add(udp("fd77::3", 53))
	f.Add(fragment(udp("127.0.0.1", 53), 0x2000))
	f.Fuzz(func(t *testing.T, frame []byte) {
		if !testRules.Allows(frame) || len(frame) < ethernetHeader+header4 {
			return
		}
		var p packet
		switch kind, content := binary.BigEndian.Uint16(frame[ethernetType:]), frame[ethernetHeader:]; kind {
		case typeIPv4:
			p, _ = parse4(content)
		case typeIPv6:
			p, _ = parse6(content)
		case typeARP:
			return
		default:
			t.Errorf("allowed %x", frame)
		}
		if kind := specialaddress.Kind(p.to); kind != "" && p.protocol == protocolTCP {
			t.Errorf("allowed TCP to %s, %s", p.to, kind)
		}
	})
}

func framed(frame []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(frame))), frame...)
}

func TestFirewall_PassesAllowedFrames(t *testing.T) {
	good, bad := tcp("10.77.0.2", 4711, 16443, flagSYN), tcp("10.77.0.2", 4711, 1, flagSYN)
	var network bytes.Buffer
	err := Pass(testRules, io.MultiReader(
		bytes.NewReader(framed(bad)), bytes.NewReader(framed(good)), bytes.NewReader(framed(bad)), bytes.NewReader(framed(good)),
	), &network, Elsewhere{})
	if !errors.Is(err, io.EOF) {
		t.Errorf("error = %v", err)
	}
	if want := append(framed(good), framed(good)...); !bytes.Equal(network.Bytes(), want) {
		t.Errorf("passed %x, want %x", network.Bytes(), want)
	}
	if err := Pass(testRules, bytes.NewReader([]byte{0xff, 0, 0, 0}), &network, Elsewhere{}); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("a frame of 4 GiB: %v", err)
	}
}

// QEMU blocks while its frames are not read, which also blocks the network. Frames are therefore read even while
// the network accepts none.
func TestFirewall_PassNeverBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		guest, fromGuest := io.Pipe()
		network, toNetwork := io.Pipe() // never read
		done := make(chan error)
		go func() { done <- Pass(testRules, guest, toNetwork, Elsewhere{}) }()
		for range 2 * maxQueued {
			if _, err := fromGuest.Write(framed(tcp("10.77.0.2", 4711, 16443, flagSYN))); err != nil {
				t.Fatal(err)
			}
		}
		fromGuest.Close()
		network.CloseWithError(errors.New("QEMU has exited"))
		if err := <-done; !errors.Is(err, io.EOF) {
			t.Errorf("error = %v", err)
		}
	})
}

// Nothing outside is allowed. This includes the name server, through which data could leave.
func TestFirewall_NoOutside(t *testing.T) {
	rules := testRules
	rules.NoOutside = true
	for name, test := range map[string]struct {
		frame []byte
		want  bool
	}{
		"the API server":        {tcp("10.77.0.2", 4711, 16443, flagSYN), true},
		"DHCP":                  {udp("255.255.255.255", 67), true},
		"the outside":           {tcp("192.0.2.1", 4711, 443, flagSYN), false},
		"the outside over IPv6": {tcp("2001:db8::1", 4711, 443, flagSYN), false},
		"the name server":       {udp("10.77.0.3", 53), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := rules.Allows(test.frame); got != test.want {
				t.Errorf("Allows() = %t, want %t", got, test.want)
			}
		})
	}
}

// Frames for other guests are passed to others, and frames that look for neighbors to both.
func TestFirewall_PassesFramesToGuests(t *testing.T) {
	arp := append(make([]byte, 12), 8, 6)
	frames := [][]byte{
		tcp("10.77.0.99", 4711, 22, flagSYN), tcp("fd77::99", 4711, 22, flagSYN), ip("fd77::99", protocolICMPv6, 135, 0, 0, 0),
		arp, ip("ff02::1:ff00:99", protocolICMPv6, 135, 0, 0, 0),
		ip("ff02::2", protocolICMPv6, 133, 0, 0, 0), tcp("10.77.0.2", 4711, 16443, flagSYN), udp("10.77.0.3", 53), tcp("192.0.2.1", 4711, 443, flagSYN), udp("255.255.255.255", 67),
	}
	var guest, network bytes.Buffer
	for _, frame := range frames {
		guest.Write(framed(frame))
	}
	var others [][]byte
	err := Pass(testRules, &guest, &network, Elsewhere{Guests: func(frame []byte) { others = append(others, frame) }})
	if !errors.Is(err, io.EOF) {
		t.Errorf("error = %v", err)
	}
	if want := bytes.Join(frames[:5], nil); !bytes.Equal(bytes.Join(others, nil), want) {
		t.Errorf("passed to others: %x, want %x", others, want)
	}
	var want []byte
	for _, frame := range frames[3:] {
		want = append(want, framed(frame)...)
	}
	if !bytes.Equal(network.Bytes(), want) {
		t.Errorf("passed to the network: %x, want %x", network.Bytes(), want)
	}
}

// fragment6Frame returns a frame with a fragment of an IPv6 packet of a protocol.
func fragment6Frame(to string, protocol byte) []byte {
	return ip(to, protocolFrag6, protocol, 0, 0, 1, 0, 0, 0, 1, 18, 103, 156, 64)
}

// A guest takes part in connections that the hypervisor has opened, and responds to its datagrams. It reaches nothing else
// that way, and cannot open a connection itself.
func TestFirewall_PassesFramesToHost(t *testing.T) {
	const syn, ack, rst = flagSYN, flagACK, 0x04
	own := [][]byte{
		tcp("10.77.0.3", 22, 40000, syn|ack), tcp("10.77.0.3", 22, 40000, ack), tcp("10.77.0.3", 22, 40000, rst), tcp("fd77::3", 22, 40000, syn|ack),
		udp("10.77.0.3", 40000), udp("fd77::3", 40000), fragment(udp("10.77.0.3", 40000), 0x2000), fragment(udp("10.77.0.3", 53), 1), fragment6Frame("fd77::3", protocolUDP),
	}
	others := [][]byte{
		tcp("10.77.0.3", 22, 40000, syn), ip("10.77.0.3", protocolTCP, 0, 22, 156, 64), fragment(tcp("10.77.0.3", 22, 40000, ack), 0x2000),
		tcp("10.77.0.3", 4711, 53, ack), udp("10.77.0.3", 53), udp("fd77::3", 53), udp("10.77.0.2", 40000), udp("10.77.0.9", 40000), udp("192.0.2.1", 40000),
		ip("10.77.0.3", protocolUDP, 18), fragment(udp("10.77.0.2", 40000), 1), fragment6Frame("fd77::3", protocolTCP), fragment6Frame("fd77::2", protocolUDP),
		ip("fd77::3", protocolFrag6, protocolUDP), ip("10.77.0.3", protocolFrag6, protocolUDP, 0, 0, 1, 0, 0, 0, 1, 18, 103, 156, 64), fragment(ip("10.77.0.3", protocolICMP, 8, 0, 0, 0), 1),
		tcp("10.77.0.2", 22, 40000, ack), tcp("10.77.0.9", 22, 40000, ack),
		tcp("192.0.2.1", 22, 40000, ack), ip("fd77::3", protocolICMPv6, 128, 0, 0, 0), append(make([]byte, 12), 8, 6), make([]byte, 5),
	}
	var guest bytes.Buffer
	for _, frame := range append(others, own...) {
		guest.Write(framed(frame))
	}
	var host, network bytes.Buffer
	err := Pass(testRules, &guest, &network, Elsewhere{Host: func(frame []byte) { host.Write(framed(frame)) }})
	if !errors.Is(err, io.EOF) {
		t.Errorf("error = %v", err)
	}
	for _, frame := range own {
		if !bytes.Contains(host.Bytes(), framed(frame)) || bytes.Contains(network.Bytes(), framed(frame)) {
			t.Errorf("%x does not go to the host", frame)
		}
	}
	for _, frame := range others {
		if bytes.Contains(host.Bytes(), framed(frame)) {
			t.Errorf("%x goes to the host", frame)
		}
	}
}
