package network

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
)

// Network is a network that a guest treats as its own link, although the switch routes to other guests.
type Network struct {
	// Prefix contains all addresses.
	Prefix netip.Prefix
	// OnLink are the addresses that are on the guest's link. They respond themselves. The first one is the gateway.
	OnLink []netip.Addr
}

// Values of ARP and neighbor discovery (RFC 4861, sections 4.3 and 4.4).
const (
	arpOperation, arpTargetMAC, arpTargetIP = 6, 18, 24
	arpRequest, arpReply                    = 1, 2

	typeSolicitation, typeAdvertisement = 135, 136
	solicitation, advertisement         = 24, 32 // sizes
	solicitedTarget                     = 8
	flagSolicited                       = 0x40
	optionTargetMAC                     = 2
	hopsOnLink                          = 255
)

// Resolve responds to a guest that looks for the Ethernet address of another guest: it is that of the router. The
// response is nil if someone else responds or no one does. local reports whether the frame must not leave the link.
func (p Port) Resolve(frame []byte) (response []byte, local bool) {
	if len(frame) < etherHeader || !bytes.Equal(frame[etherSource:etherType], p.MAC) {
		return nil, false
	}
	switch content := frame[etherHeader:]; binary.BigEndian.Uint16(frame[etherType:]) {
	case typeARP:
		return p.resolve4(content), false
	case typeIPv6:
		return p.resolve6(content)
	}
	return nil, false
}

// resolve4 responds to ARP. A guest that checks whether an address is free has no address yet, and gets no response.
func (p Port) resolve4(data []byte) []byte {
	if p.inspectARP(data) != "" || binary.BigEndian.Uint16(data[arpOperation:]) != arpRequest {
		return nil
	}
	sender := data[arpSenderIP:arpTargetMAC]
	target := netip.AddrFrom4([4]byte(data[arpTargetIP:]))
	if netip.AddrFrom4([4]byte(sender)) != p.IPv4 || !p.routesTo(target) {
		return nil
	}
	return slices.Concat(p.MAC, gatewayMAC, []byte{typeARP >> 8, typeARP & 0xff},
		ethernetIPv4, []byte{0, arpReply}, gatewayMAC, target.AsSlice(), p.MAC, sender)
}

// resolve6 responds to neighbor solicitations, also to those that check whether a neighbor still exists.
func (p Port) resolve6(data []byte) (response []byte, local bool) {
	if len(data) < header6+solicitation || data[protocol6] != protocolICMPv6 || data[header6] != typeSolicitation {
		return nil, false
	}
	source := netip.AddrFrom16([16]byte(data[source6:]))
	target := netip.AddrFrom16([16]byte(data[header6+solicitedTarget:]))
	if data[hops6] != hopsOnLink || source != p.IPv6 && !source.IsLinkLocalUnicast() || !p.routesTo(target) {
		return nil, true
	}
	header := make([]byte, header6)
	header[0], header[protocol6], header[hops6] = 0x60, protocolICMPv6, hopsOnLink
	binary.BigEndian.PutUint16(header[4:], advertisement)
	copy(header[source6:], target.AsSlice())
	copy(header[destination6:], source.AsSlice())
	message := slices.Concat([]byte{typeAdvertisement, 0, 0, 0, flagSolicited, 0, 0, 0}, target.AsSlice(),
		[]byte{optionTargetMAC, 1}, gatewayMAC)
	binary.BigEndian.PutUint16(message[2:], checksum6(header, message))
	return slices.Concat(p.MAC, gatewayMAC, []byte{typeIPv6 >> 8, typeIPv6 & 0xff}, header, message), true
}

// routesTo reports whether an address may be that of another guest.
func (p Port) routesTo(address netip.Addr) bool {
	return address != p.IPv4 && address != p.IPv6 && slices.ContainsFunc(p.Networks, func(n Network) bool {
		return n.Prefix.Contains(address) && !slices.Contains(n.OnLink, address)
	})
}

// checksum6 returns the checksum of an ICMPv6 message (RFC 8200, section 8.1).
func checksum6(header, message []byte) uint16 {
	pseudo := sum(uint32(len(message))+protocolICMPv6, header[source6:header6])
	return ^sum(uint32(pseudo), message)
}
