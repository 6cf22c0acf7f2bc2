package network

import (
	"context"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/link/ethernet"
	arpprotocol "gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// onOneLink returns a port whose guest treats the network as its own link.
func onOneLink(port Port) Port {
	port.Networks = []Network{
		{netip.MustParsePrefix("10.77.0.0/16"), []netip.Addr{netip.MustParseAddr("10.77.0.2"), netip.MustParseAddr("10.77.0.3")}},
		{netip.MustParsePrefix("fd77::/64"), []netip.Addr{netip.MustParseAddr("fd77::2")}},
	}
	return port
}

func arpRequestFor(target string) []byte {
	return with(arp(alice.MAC, alice.IPv4), etherHeader+arpTargetIP, netip.MustParseAddr(target).AsSlice()...)
}

// solicit returns alice's multicast neighbor solicitation.
func solicit(target string) []byte {
	address := netip.MustParseAddr(target).AsSlice()
	message := slices.Concat([]byte{typeSolicitation, 0, 0, 0, 0, 0, 0, 0}, address, []byte{1, 1}, alice.MAC)
	frame := ip("ff02::1:ff00:0", protocolICMPv6, message...)
	copy(frame[etherHeader+destination6+13:], address[13:])
	frame[etherHeader+hops6] = hopsOnLink
	return frame
}

func TestPort_RespondsForOtherGuests(t *testing.T) {
	const source = etherHeader + source6
	linkLocal := netip.MustParseAddr("fe80::a").AsSlice()
	for name, test := range map[string]struct {
		frame            []byte
		responds, isHere bool
	}{
		"another guest":                      {arpRequestFor("10.77.0.11"), true, false},
		"a guest in another part":            {arpRequestFor("10.77.200.9"), true, false},
		"the gateway":                        {arpRequestFor("10.77.0.2"), false, false},
		"the name server":                    {arpRequestFor("10.77.0.3"), false, false},
		"itself":                             {arpRequestFor("10.77.0.10"), false, false},
		"outside":                            {arpRequestFor("10.78.0.11"), false, false},
		"a check whether an address is free": {with(arpRequestFor("10.77.0.11"), etherHeader+arpSenderIP, 0, 0, 0, 0), false, false},
		"another sender":                     {with(arpRequestFor("10.77.0.11"), etherHeader+arpSenderIP, 10, 77, 0, 9), false, false},
		"a response":                         {with(arpRequestFor("10.77.0.11"), etherHeader+arpOperation, 0, arpReply), false, false},
		"another MAC":                        {with(arpRequestFor("10.77.0.11"), etherSource, bob.MAC...), false, false},
		"another guest over IPv6":            {solicit("fd77::b"), true, true},
		"from the link-local address":        {with(solicit("fd77::b"), source, linkLocal...), true, true},
		"the IPv6 gateway":                   {solicit("fd77::2"), false, true},
		"itself over IPv6":                   {solicit("fd77::a"), false, true},
		"outside over IPv6":                  {solicit("fd78::b"), false, true},
		"a link-local address":               {solicit("fe80::b"), false, true},
		"a check whether an IPv6 is free":    {with(solicit("fd77::b"), source, make([]byte, 16)...), false, true},
		"another IPv6 sender":                {with(solicit("fd77::b"), source, bob.IPv6.AsSlice()...), false, true},
		"from beyond the link":               {with(solicit("fd77::b"), etherHeader+hops6, 254), false, true},
		"an incomplete solicitation":         {solicit("fd77::b")[:etherHeader+header6+20], false, false},
		"an advertisement":                   {with(solicit("fd77::b"), etherHeader+header6, typeAdvertisement), false, false},
		"a packet":                           {udp("10.77.0.11", 7), false, false},
		"an IPv6 packet":                     {udp("fd77::b", 7), false, false},
		"an incomplete frame":                {make([]byte, 5), false, false},
		"incomplete ARP":                     {arpRequestFor("10.77.0.11")[:etherHeader+20], false, false},
	} {
		t.Run(name, func(t *testing.T) {
			response, local := onOneLink(alice).Resolve(test.frame)
			if (response != nil) != test.responds || local != test.isHere {
				t.Errorf("Resolve() = %x, %t, want a response: %t, %t", response, local, test.responds, test.isHere)
			}
			if response, _ := alice.Resolve(test.frame); response != nil {
				t.Errorf("responded without networks: %x", response)
			}
		})
	}
}

func FuzzResolve(f *testing.F) {
	f.Add(arpRequestFor("10.77.0.11"))
	f.Add(solicit("fd77::b"))
	f.Fuzz(func(t *testing.T, frame []byte) {
		if response, _ := onOneLink(alice).Resolve(frame); len(response) > len(frame)+etherHeader {
			t.Errorf("a response of %d bytes to a frame of %d bytes", len(response), len(frame))
		}
	})
}

const linkCard = 1

// guestStack is gVisor's network stack in the place of a guest that treats the network as its own link.
func guestStack(ctx context.Context, t *testing.T, socket string, port Port) *stack.Stack {
	t.Helper()
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{arpprotocol.NewProtocol, ipv4.NewProtocol, ipv6.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol},
	})
	channel := channel.New(maxQueued, maxFrame, tcpip.LinkAddress(port.MAC))
	check(t, s.CreateNIC(linkCard, ethernet.New(channel)))
	var routes []tcpip.Route
	for address, protocol := range map[netip.Addr]tcpip.NetworkProtocolNumber{port.IPv4: ipv4.ProtocolNumber, port.IPv6: ipv6.ProtocolNumber} {
		bits := 64
		if address.Is4() {
			bits = 16
		}
		own := tcpip.AddressWithPrefix{Address: tcpip.AddrFromSlice(address.AsSlice()), PrefixLen: bits}
		check(t, s.AddProtocolAddress(linkCard, tcpip.ProtocolAddress{Protocol: protocol, AddressWithPrefix: own}, stack.AddressProperties{}))
		routes = append(routes, tcpip.Route{Destination: own.Subnet(), NIC: linkCard})
	}
	s.SetRouteTable(routes)
	link, err := Join(ctx, socket, onOneLink(port), func(framed []byte) error {
		packet := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(framed[lengthSize:])})
		defer packet.DecRef()
		channel.InjectInbound(0, packet)
		return nil
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer s.Destroy()
		for packet := channel.ReadContext(ctx); packet != nil; packet = channel.ReadContext(ctx) {
			link.Send(slices.Concat(packet.AsSlices()...))
			packet.DecRef()
		}
	}()
	return s
}

func check(t *testing.T, err tcpip.Error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A guest that treats the network as its own link finds other guests by ARP and neighbor discovery, and connects to
// them.
func TestLink_RespondsForOtherGuests(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	socket := filepath.Join(t.TempDir(), "switch.sock")
	defer startSwitch(t, socket)()
	a, b := guestStack(ctx, t, socket, alice), guestStack(ctx, t, socket, bob)
	for protocol, address := range map[tcpip.NetworkProtocolNumber]netip.Addr{ipv4.ProtocolNumber: bob.IPv4, ipv6.ProtocolNumber: bob.IPv6} {
		to := tcpip.FullAddress{NIC: linkCard, Addr: tcpip.AddrFromSlice(address.AsSlice()), Port: 80}
		listener, err := gonet.ListenTCP(b, to, protocol)
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		conn, err := gonet.DialContextTCP(ctx, a, to, protocol)
		if err != nil {
			t.Fatalf("connecting to %s: %v", address, err)
		}
		defer conn.Close()
	}
}
