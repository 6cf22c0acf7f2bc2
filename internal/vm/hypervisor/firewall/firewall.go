// Package firewall decides which frames of a guest may enter QEMU's user-mode network.
//
// QEMU connects as a process on the host, so without a firewall a guest can reach every service on the host's
// loopback interface: through the address of the gateway, other addresses of its own network, broadcast addresses,
// and loopback addresses themselves. The firewall lists what is allowed within the guest's network and blocks all
// other addresses that lead to the loopback interface. All other addresses are outside and allowed.
package firewall

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/millwright-dev/millwright/internal/specialaddress"
)

// Rules define what a guest may reach in its own network. The zero value allows nothing in it.
type Rules struct {
	// Networks are the networks of the guest.
	Networks []Network
	// HostPorts are the TCP ports of the host's loopback interface that the guest may connect to, at the address
	// of a gateway.
	HostPorts []uint16
	// NoOutside blocks all addresses outside the networks. It also blocks the name servers, through which data
	// could leave.
	NoOutside bool
}

// Network is a network of one IP version with its special addresses.
type Network struct {
	// Prefix contains all addresses.
	Prefix netip.Prefix
	// Gateway is the address that represents the host's loopback interface.
	Gateway netip.Addr
	// NameServer is the address that represents the host's name server. It responds only on port 53. The hypervisor's
	// own connections and datagrams to the guest come from other ports of this address.
	NameServer netip.Addr
}

// Sizes and offsets of headers, in bytes.
const (
	ethernetHeader = 14
	ethernetType   = 12
	header4        = 20
	header6        = 40
	fragment6      = 8 // of an IPv6 fragment
	portsLength    = 4
	tcpFlags       = 13
)

// Values of header fields.
const (
	typeARP  = 0x0806
	typeRARP = 0x8035
	typeIPv4 = 0x0800
	typeIPv6 = 0x86dd

	protocolICMP   = 1
	protocolTCP    = 6
	protocolUDP    = 17
	protocolFrag6  = 44 // a fragment of an IPv6 packet
	protocolICMPv6 = 58

	typeSolicitation = 135 // of ICMPv6

	flagSYN = 0x02
	flagACK = 0x10

	portDNS    = 53
	portDHCP   = 67
	portDHCPv6 = 547
)

// packet is the part of an IP packet that the rules need.
type packet struct {
	to       netip.Addr
	protocol byte
	// fragment reports whether the packet is a fragment. Its ports may be in another packet.
	fragment bool
	payload  []byte
}

// Allows reports whether an Ethernet frame of the guest may enter the network.
func (r Rules) Allows(frame []byte) bool {
	if len(frame) < ethernetHeader {
		return false
	}
	var p packet
	var ok bool
	switch content := frame[ethernetHeader:]; binary.BigEndian.Uint16(frame[ethernetType:]) {
	case typeARP:
		return true // only the gateway and the name server respond
	case typeIPv4:
		p, ok = parse4(content)
	case typeIPv6:
		p, ok = parse6(content)
	}
	return ok && r.allows(p)
}

func parse4(data []byte) (packet, bool) {
	if len(data) < header4 || data[0]>>4 != 4 {
		return packet{}, false
	}
	header, total := int(data[0]&0xf)*4, int(binary.BigEndian.Uint16(data[2:]))
	if header < header4 || total < header || total > len(data) {
		return packet{}, false
	}
	const moreAndOffset = 0x3fff
	return packet{
		to: netip.AddrFrom4([4]byte(data[16:])), protocol: data[9],
		fragment: binary.BigEndian.Uint16(data[6:])&moreAndOffset != 0, payload: data[header:total],
	}, true
}

// parse6 treats an extension header as an unknown protocol, as QEMU does.
func parse6(data []byte) (packet, bool) {
	if len(data) < header6 || data[0]>>4 != 6 {
		return packet{}, false
	}
	length := int(binary.BigEndian.Uint16(data[4:]))
	if header6+length > len(data) {
		return packet{}, false
	}
	return packet{to: netip.AddrFrom16([16]byte(data[24:])), protocol: data[6], payload: data[header6 : header6+length]}, true
}

var broadcast = netip.MustParseAddr("255.255.255.255")

func (r Rules) allows(p packet) bool {
	switch {
	case p.to.Is4In6():
		return false
	case p.to == broadcast:
		return p.isUDP(portDHCP)
	case p.to.IsMulticast(), p.to.Is6() && p.to.IsLinkLocalUnicast():
		return p.protocol == protocolICMPv6 || p.to.Is6() && p.isUDP(portDHCPv6)
	case specialaddress.Kind(p.to) != "":
		return false
	}
	for _, network := range r.Networks {
		if network.Prefix.Contains(p.to) {
			return r.allowsInside(network, p)
		}
	}
	return !r.NoOutside
}

// toGuest reports whether a frame is for an ordinary address of the guest's network, and may therefore be for
// another guest. Frames that look for a neighbor always may: ARP, and multicast neighbor solicitations.
func (r Rules) toGuest(frame []byte) (toGuest, isDiscovery bool) {
	if len(frame) < ethernetHeader {
		return false, false
	}
	var p packet
	switch content := frame[ethernetHeader:]; binary.BigEndian.Uint16(frame[ethernetType:]) {
	case typeARP, typeRARP:
		return false, true
	case typeIPv4:
		p, toGuest = parse4(content)
	case typeIPv6:
		p, toGuest = parse6(content)
		if p.isSolicitation() && p.to.IsMulticast() {
			return false, true
		}
	}
	return toGuest && slices.ContainsFunc(r.Networks, func(n Network) bool {
		return n.Prefix.Contains(p.to) && p.to != n.Gateway && p.to != n.NameServer
	}), false
}

// toHost reports whether a frame belongs to a connection that the hypervisor has opened to the guest, or may be a datagram
// in response to one of the hypervisor, or a fragment of it. Frames that open a connection do not, so the guest cannot
// connect to the hypervisor. Which datagrams are responses is up to the receiver.
func (r Rules) toHost(frame []byte) bool {
	if len(frame) < ethernetHeader {
		return false
	}
	var p packet
	var ok bool
	switch content := frame[ethernetHeader:]; binary.BigEndian.Uint16(frame[ethernetType:]) {
	case typeIPv4:
		p, ok = parse4(content)
	case typeIPv6:
		p, ok = parse6(content)
	}
	return ok && slices.ContainsFunc(r.Networks, func(n Network) bool { return n.NameServer == p.to }) && p.responds()
}

// responds reports whether a packet may respond to one that has come from the address of the name server.
func (p packet) responds() bool {
	_, to, ok := p.ports()
	switch p.protocol {
	case protocolTCP:
		return ok && to != portDNS && !p.opens()
	case protocolUDP:
		return ok && to != portDNS || p.fragment
	case protocolFrag6:
		return p.to.Is6() && len(p.payload) >= fragment6 && p.payload[0] == protocolUDP
	}
	return false
}

// allowsInside decides whether a packet to an address of the guest's own network is allowed.
func (r Rules) allowsInside(network Network, p packet) bool {
	if p.protocol == protocolICMP || p.protocol == protocolICMPv6 {
		return !p.fragment
	}
	_, to, ok := p.ports()
	switch {
	case !ok:
		return false
	case p.to == network.NameServer:
		return to == portDNS && !r.NoOutside
	case p.to != network.Gateway:
		return false
	case p.protocol == protocolUDP:
		return p.to.Is4() && to == portDHCP
	}
	return slices.Contains(r.HostPorts, to)
}

// ports returns the ports of an unfragmented TCP or UDP packet.
func (p packet) ports() (from, to uint16, ok bool) {
	if p.fragment || len(p.payload) < portsLength || p.protocol != protocolTCP && p.protocol != protocolUDP {
		return 0, 0, false
	}
	return binary.BigEndian.Uint16(p.payload), binary.BigEndian.Uint16(p.payload[2:]), true
}

func (p packet) isUDP(port uint16) bool {
	_, to, ok := p.ports()
	return ok && p.protocol == protocolUDP && to == port
}

func (p packet) isSolicitation() bool {
	return p.protocol == protocolICMPv6 && len(p.payload) > 0 && p.payload[0] == typeSolicitation
}

// opens reports whether a TCP packet may open a connection. QEMU does not open connections for other packets.
func (p packet) opens() bool {
	return len(p.payload) <= tcpFlags || p.payload[tcpFlags]&(flagSYN|flagACK) == flagSYN
}
