// Package metadataservice contains the addresses of the metadata services of clouds.
//
// A metadata service identifies the machine from which a connection comes and returns that machine's credentials.
// Connections of guests and other untrusted parties must therefore not come from that machine.
package metadataservice

import (
	"net/netip"
	"slices"
)

// otherAddresses are the addresses of metadata services that are not link-local.
var otherAddresses = []netip.Addr{
	netip.MustParseAddr("fd00:ec2::254"),   // Amazon
	netip.MustParseAddr("100.100.100.200"), // Alibaba
	netip.MustParseAddr("168.63.129.16"),   // Azure
	netip.MustParseAddr("192.0.0.192"),     // Oracle
}

// MayBeAt reports whether an address may belong to a metadata service: each link-local address may, and so may
// some others. An IPv4-mapped IPv6 address counts as its IPv4 address.
func MayBeAt(address netip.Addr) bool {
	address = address.Unmap()
	return address.IsLinkLocalUnicast() || slices.Contains(otherAddresses, address)
}
