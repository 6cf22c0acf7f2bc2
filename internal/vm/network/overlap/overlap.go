// Package overlap checks whether a network of guests is usable, and which networks of this host it hides from the
// guests.
//
// A guest assumes that all addresses of its network belong to other guests, so it cannot reach other hosts with
// these addresses. The host itself is not affected: the guest network exists only in QEMU.
package overlap

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/millwright-dev/millwright/internal/specialaddress"
)

// Network is a network that this host has an address in or a route to.
type Network struct {
	// Prefix is the network. It contains a single address if it is an address of this host.
	Prefix netip.Prefix
	// Interface is the name of the network interface. It is empty for a route that uses several.
	Interface string
	// Own reports whether this host has an address in the network. Other networks are behind routers or in a VPN.
	Own bool
}

// String returns a description of the network for users.
func (n Network) String() string {
	what := "a route of this host"
	switch {
	case n.Prefix.IsSingleIP():
		what = "an address of this host"
	case n.Own:
		what = "a network of this host"
	}
	if n.Interface != "" {
		what += " (" + n.Interface + ")"
	}
	return fmt.Sprintf("%s, %s", n.Prefix, what)
}

// The allowed lengths of guest network prefixes, in bits. The first sixteen addresses of a network are not
// assigned to guests. QEMU assigns IPv6 addresses only in networks of one length.
const (
	minBits4, maxBits4 = 8, 27
	bits6              = 64
)

// Unusable returns what is wrong with a guest network, independently of other networks. It returns an empty string
// if the network is usable.
func Unusable(guests netip.Prefix) (problem string) {
	switch {
	case !guests.IsValid():
		return "it is not a network"
	case guests.Addr().Is4() && (guests.Bits() < minBits4 || guests.Bits() > maxBits4):
		return fmt.Sprintf("%s is not an IPv4 network of %d to %d bits", guests, minBits4, maxBits4)
	case !guests.Addr().Is4() && (guests.Bits() != bits6 || guests.Addr().Is4In6()):
		return fmt.Sprintf("%s is not an IPv6 network of %d bits", guests, bits6)
	case guests != guests.Masked():
		return fmt.Sprintf("%s is an address in the network %s; specify the network", guests, guests.Masked())
	}
	return Reserved(guests)
}

// Reserved returns what is wrong with a guest network that contains addresses no guest can have, such as loopback,
// link-local or multicast addresses. It returns an empty string if it contains none of them.
func Reserved(guests netip.Prefix) (problem string) {
	if special, ok := specialaddress.Overlapping(guests); ok {
		return fmt.Sprintf("%s overlaps %s, whose addresses no virtual machine can have", guests, special)
	}
	return ""
}

// Hidden returns a sentence about the networks of this host that overlap the guest network. It returns an empty
// string if there are none. It considers only the network namespace of this process.
func Hidden(guests netip.Prefix) (sentence string, err error) {
	networks, err := ofHost()
	if err != nil {
		return "", err
	}
	return describe(guests, overlapping(guests, networks)), nil
}

// Taken is like Hidden, but considers only the networks in which this host has an address.
func Taken(guests netip.Prefix) (sentence string, err error) {
	networks, err := ofHost()
	if err != nil {
		return "", err
	}
	networks = slices.DeleteFunc(networks, func(network Network) bool { return !network.Own })
	return describe(guests, overlapping(guests, networks)), nil
}

func describe(guests netip.Prefix, hidden []Network) string {
	if len(hidden) == 0 {
		return ""
	}
	var names []string
	for _, network := range hidden {
		names = append(names, network.String())
	}
	return fmt.Sprintf("%s overlaps %s: guests cannot reach hosts whose addresses are in both", guests, strings.Join(names, ", and "))
}

// defaultRouteBits is the maximum length of prefixes that count as a default route instead of a network, such as a route
// to the Internet or into a VPN. They usually contain all addresses.
const defaultRouteBits = 8

// overlapping returns the networks that overlap the guest network, except those inside other networks.
func overlapping(guests netip.Prefix, networks []Network) []Network {
	var found []Network
	slices.SortFunc(networks, func(a, b Network) int {
		return cmp.Or(cmp.Compare(a.Prefix.Bits(), b.Prefix.Bits()), a.Prefix.Addr().Compare(b.Prefix.Addr()), cmp.Compare(a.Interface, b.Interface))
	})
	for _, network := range networks {
		if network.Prefix.Bits() < defaultRouteBits || !network.Prefix.Overlaps(guests) {
			continue
		}
		if !slices.ContainsFunc(found, func(larger Network) bool { return larger.Prefix.Overlaps(network.Prefix) }) {
			found = append(found, network)
		}
	}
	return found
}

// ofHost returns all networks in all routing tables, including the kernel's table of local addresses.
func ofHost() ([]Network, error) {
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("listing the routes of this host: %w", err)
	}
	var networks []Network
	for _, route := range routes {
		if route.Dst == nil || route.Type != unix.RTN_UNICAST && route.Type != unix.RTN_LOCAL {
			continue
		}
		address, ok := netip.AddrFromSlice(route.Dst.IP)
		if !ok {
			continue
		}
		bits, _ := route.Dst.Mask.Size()
		// The kernel adds these routes for its own addresses and for the networks that contain them.
		network := Network{Prefix: netip.PrefixFrom(address.Unmap(), bits), Own: route.Protocol == unix.RTPROT_KERNEL}
		if card, err := net.InterfaceByIndex(route.LinkIndex); err == nil {
			network.Interface = card.Name
		}
		networks = append(networks, network)
	}
	return networks, nil
}
