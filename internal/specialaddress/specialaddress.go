// Package specialaddress lists the addresses that no connection of an untrusted user or guest may lead to.
//
// Guests, and users who choose URLs or the addresses of servers, can make a process of an operator connect to an
// address. At the addresses in this list, that process would reach services that trust it because of where it runs:
// services of its host and its link, and the metadata services of clouds, which return the credentials of the machine
// from which a connection comes.
//
// Private networks are not in the list: servers and guests usually have their addresses. Networks for documentation
// and benchmarks lead to no such services, and test networks use them.
package specialaddress

import (
	"fmt"
	"net/netip"
	"slices"
	"syscall"
)

// network is a network of special addresses.
type network struct {
	prefix netip.Prefix
	// kind describes an address of the network.
	kind string
}

// Kinds of special addresses.
const (
	loopback    = "a loopback address"
	linkLocal   = "a link-local address"
	multicast   = "a multicast address"
	reserved    = "a reserved address"
	unspecified = "an unspecified address"
	metadata    = "the address of a metadata service"
)

// networks are special networks, from the IANA special-purpose address registries for IPv4 and IPv6 and the registries
// of multicast addresses. A more specific network comes before the network that contains it.
var networks = []network{
	{netip.MustParsePrefix("0.0.0.0/8"), unspecified},
	{netip.MustParsePrefix("127.0.0.0/8"), loopback},
	{netip.MustParsePrefix("169.254.0.0/16"), linkLocal},
	{netip.MustParsePrefix("192.0.0.0/24"), reserved}, // among others, a host's own address behind DS-Lite, and anycast services
	{netip.MustParsePrefix("224.0.0.0/4"), multicast},
	{netip.MustParsePrefix("240.0.0.0/4"), reserved}, // and broadcasts

	{netip.MustParsePrefix("::1/128"), loopback},
	{netip.MustParsePrefix("::/128"), unspecified},
	{netip.MustParsePrefix("::/8"), reserved},      // among others, IPv4-compatible and IPv4-translated addresses
	{netip.MustParsePrefix("2001::/23"), reserved}, // among others, Teredo and anycast services
	{netip.MustParsePrefix("5f00::/16"), reserved}, // segments, which are instructions for routers
	{netip.MustParsePrefix("fe80::/10"), linkLocal},
	{netip.MustParsePrefix("ff00::/8"), multicast},
}

// metadataServices are the published addresses of metadata services that are not in networks.
var metadataServices = []netip.Addr{
	netip.MustParseAddr("100.100.100.200"),    // Alibaba Cloud
	netip.MustParseAddr("168.63.129.16"),      // Azure
	netip.MustParseAddr("100.80.80.80"),       // UCloud
	netip.MustParseAddr("100.96.0.96"),        // Volcano Engine, BytePlus
	netip.MustParseAddr("fd00:a9fe:a9fe::1"),  // Akamai
	netip.MustParseAddr("fd00:ec2::254"),      // Amazon EC2
	netip.MustParseAddr("fd00:ec2::23"),       // Amazon EKS
	netip.MustParseAddr("fd20:ce::254"),       // Google Cloud
	netip.MustParseAddr("fd00:c1::a9fe:a9fe"), // Oracle Cloud
	netip.MustParseAddr("fd00:42::42"),        // Scaleway
}

// embedding is an IPv6 network whose addresses contain IPv4 addresses. A router sends packets for them to the latter.
type embedding struct {
	prefix netip.Prefix
	// octets are the places in which the IPv4 address may be. Which one it is depends on the router.
	octets [][4]int
}

var lastOctets = [4]int{12, 13, 14, 15}

var embeddings = []embedding{
	{netip.MustParsePrefix("64:ff9b::/96"), [][4]int{lastOctets}},                                                   // NAT64: RFC 6052
	{netip.MustParsePrefix("64:ff9b:1::/48"), [][4]int{{6, 7, 9, 10}, {7, 9, 10, 11}, {9, 10, 11, 12}, lastOctets}}, // NAT64: RFC 8215
	{netip.MustParsePrefix("2002::/16"), [][4]int{{2, 3, 4, 5}}},                                                    // 6to4: RFC 3056
}

// Kind returns what is special about an address, for example "a link-local address". It returns an empty string for
// all other addresses. An IPv6 address that leads to an IPv4 address is as special as the latter.
func Kind(address netip.Addr) string {
	address = address.WithZone("").Unmap()
	for _, e := range embeddings {
		if e.prefix.Contains(address) {
			return e.kind(address)
		}
	}
	for _, special := range networks {
		if special.prefix.Contains(address) {
			return special.kind
		}
	}
	if slices.Contains(metadataServices, address) {
		return metadata
	}
	return ""
}

// kind returns the kind of an address of the network. If the IPv4 address may be in several places, only kinds count
// that have services: in the other places, other parts of the address are read as an IPv4 address.
func (e embedding) kind(address netip.Addr) string {
	all := address.As16()
	for _, octets := range e.octets {
		embedded := netip.AddrFrom4([4]byte{all[octets[0]], all[octets[1]], all[octets[2]], all[octets[3]]})
		found := Kind(embedded)
		hasServices := found == loopback || found == linkLocal || found == metadata
		if hasServices || found != "" && len(e.octets) == 1 {
			return fmt.Sprintf("an IPv6 form of %s, %s", embedded, found)
		}
	}
	return ""
}

// Overlapping returns a special network that overlaps another network, and false if there is none. It ignores
// metadata services. A network of IPv6 forms of special IPv4 addresses is special.
func Overlapping(other netip.Prefix) (netip.Prefix, bool) {
	for _, e := range embeddings {
		if e.prefix.Contains(other.Addr()) && e.kind(other.Masked().Addr()) != "" {
			return e.prefix, true
		}
	}
	for _, special := range networks {
		if special.prefix.Overlaps(other) {
			return special.prefix, true
		}
	}
	return netip.Prefix{}, false
}

// Check returns an error if the address of a server is special.
func Check(server netip.AddrPort) error {
	if kind := Kind(server.Addr()); kind != "" {
		return fmt.Errorf("connections to %s are not allowed: it is %s", server.Addr(), kind)
	}
	return nil
}

// Control returns a function for the field Control of a net.Dialer. The dialer then calls check with each address
// before it connects, and returns its error. So check sees the address to which a name was resolved.
func Control(check func(server netip.AddrPort) error) func(network, address string, _ syscall.RawConn) error {
	return func(_, address string, _ syscall.RawConn) error {
		server, err := netip.ParseAddrPort(address)
		if err != nil {
			return fmt.Errorf("parsing the address of a server: %w", err)
		}
		return check(server)
	}
}
