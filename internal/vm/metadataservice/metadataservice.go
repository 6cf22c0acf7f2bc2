// Package metadataservice names the addresses at which clouds tell a machine about itself.
//
// Such a service knows who asks by the machine that the connection comes from, and hands out that
// machine's credentials. So nobody else may connect from there.
package metadataservice

import (
	"net/netip"
	"slices"
)

// elsewhere are those that are not link-local.
var elsewhere = []netip.Addr{
	netip.MustParseAddr("fd00:ec2::254"),   // Amazon
	netip.MustParseAddr("100.100.100.200"), // Alibaba
	netip.MustParseAddr("168.63.129.16"),   // Azure
	netip.MustParseAddr("192.0.0.192"),     // Oracle
}

// MayBeAt reports whether such a service may answer at an address: at each link-local one, and at some others.
// An IPv4 address in IPv6 counts as the former.
func MayBeAt(address netip.Addr) bool {
	address = address.Unmap()
	return address.IsLinkLocalUnicast() || slices.Contains(elsewhere, address)
}
