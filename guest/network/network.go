// Package network configures the guest's network card over netlink.
package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Card returns the first interface with an Ethernet address.
func Card() (net.Interface, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return net.Interface{}, err
	}
	for _, card := range interfaces {
		if card.Flags&net.FlagLoopback == 0 && len(card.HardwareAddr) > 0 {
			return card, nil
		}
	}
	return net.Interface{}, errors.New("no network card")
}

// Up sets an interface up, and disables IPv6 router advertisements.
func Up(card net.Interface) error {
	path := filepath.Join("/proc/sys/net/ipv6/conf", card.Name, "accept_ra")
	if err := os.WriteFile(path, []byte("0"), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return configured(netlink.LinkSetUp(link(card)))
}

// Connect adds a point-to-point link to an interface, with the peer as the default gateway. It
// is idempotent.
func Connect(card net.Interface, address, peer netip.Addr) error {
	if err := netlink.AddrReplace(link(card), pointToPoint(address, peer)); err != nil {
		return configured(err)
	}
	return configured(netlink.RouteReplace(defaultRoute(card, peer)))
}

func link(card net.Interface) netlink.Link {
	return &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: card.Index, Name: card.Name}}
}

// pointToPoint is `ip addr add ADDRESS peer PEER nodad`. The link cannot have a duplicate address.
func pointToPoint(address, peer netip.Addr) *netlink.Addr {
	return &netlink.Addr{IPNet: host(address), Peer: host(peer), Flags: unix.IFA_F_NODAD}
}

// host returns the prefix of only this address.
func host(address netip.Addr) *net.IPNet {
	return &net.IPNet{IP: address.AsSlice(), Mask: net.CIDRMask(address.BitLen(), address.BitLen())}
}

// defaultRoute is `ip route add default via GATEWAY onlink`. Without the flag, the kernel needs the route to
// the peer, which it adds for an IPv6 address in the background.
func defaultRoute(card net.Interface, gateway netip.Addr) *netlink.Route {
	return &netlink.Route{
		LinkIndex: card.Index, Gw: gateway.AsSlice(), Protocol: unix.RTPROT_BOOT, Flags: int(netlink.FLAG_ONLINK),
	}
}

func configured(err error) error {
	if err != nil {
		return fmt.Errorf("configuring the network: %w", err)
	}
	return nil
}
