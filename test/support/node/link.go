package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/millwright-dev/millwright/test/support/env"
)

// uplink is the interface of a node that leads to the router. The router's interface has the name of the node.
const uplink = "eth0"

// plug connects a node to the router.
func (n *Network) plug(node *Node) {
	n.t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.Namespace = node.Name, netlink.NsPid(n.router.PID())
	cable := &netlink.Veth{
		LinkAttrs: attrs,
		PeerName:  uplink, PeerNamespace: netlink.NsPid(node.process.PID()),
	}
	if err := netlink.LinkAdd(cable); err != nil {
		n.t.Fatalf("connecting node %s: %v", node.Name, err)
	}
	node.Reconnect()
}

// Disconnect takes the network interface of the node down, without notice to the node or anything that it is connected
// to. The node's processes continue.
func (n *Node) Disconnect() {
	n.t.Helper()
	err := inNetwork(n.process.PID(), func(h *netlink.Handle) error {
		link, err := h.LinkByName(uplink)
		if err != nil {
			return err
		}
		return h.LinkSetDown(link)
	})
	if err != nil {
		n.t.Fatalf("disconnecting node %s: %v", n.Name, err)
	}
}

// Reconnect connects the node again.
func (n *Node) Reconnect() {
	n.t.Helper()
	err := errors.Join(
		inNetwork(n.network.router.PID(), func(h *netlink.Handle) error {
			return configure(h, n.Name, nil, route(n.ip, nil), route(n.podRange, n.ip))
		}),
		inNetwork(n.process.PID(), func(h *netlink.Handle) error {
			here, there := n.ip, host(RouterIP.String())
			return configure(h, uplink, here, route(there, nil), route(everywhere, there))
		}),
	)
	if err != nil {
		n.t.Fatalf("connecting node %s: %v", n.Name, err)
	}
}

// everywhere is the destination of a default route.
var everywhere = &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}

// host returns the network of a single address.
func host(ip string) *net.IPNet {
	return &net.IPNet{IP: net.ParseIP(ip).To4(), Mask: net.CIDRMask(32, 32)}
}

// route returns a route through a gateway, or to a neighbor if that is nil.
func route(to, gateway *net.IPNet) netlink.Route {
	if gateway == nil {
		return netlink.Route{Dst: to, Scope: netlink.SCOPE_LINK}
	}
	return netlink.Route{Dst: to, Gw: gateway.IP, Flags: int(netlink.FLAG_ONLINK)}
}

// inNetwork calls a function with the network of a process.
func inNetwork(pid int, do func(*netlink.Handle) error) error {
	namespace, err := netns.GetFromPid(pid)
	if err != nil {
		return err
	}
	defer namespace.Close()
	handle, err := netlink.NewHandleAt(namespace, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer handle.Close()
	return do(handle)
}

// configure sets an interface up, with an address unless that is nil, and routes in this order.
func configure(h *netlink.Handle, name string, address *net.IPNet, routes ...netlink.Route) error {
	link, err := h.LinkByName(name)
	if err != nil {
		return err
	}
	if address != nil {
		if err := h.AddrReplace(link, &netlink.Addr{IPNet: address}); err != nil {
			return fmt.Errorf("adding %s: %w", address, err)
		}
	}
	if err := h.LinkSetUp(link); err != nil {
		return err
	}
	for _, route := range routes {
		route.LinkIndex = link.Attrs().Index
		if err := h.RouteReplace(&route); err != nil {
			return fmt.Errorf("adding a route to %s: %w", route.Dst, err)
		}
	}
	return nil
}

// addLoopback adds an address to the loopback interface of this process's network.
func addLoopback(ip string) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.AddrReplace(lo, &netlink.Addr{IPNet: host(ip)}); err != nil {
		return fmt.Errorf("adding %s: %w", ip, err)
	}
	return netlink.LinkSetUp(lo)
}

// awaitNetwork waits until the node is connected.
func awaitNetwork() error {
	if err := addLoopback("127.0.0.1"); err != nil {
		return err
	}
	return wait.PollUntilContextTimeout(context.Background(), 10*time.Millisecond, env.WaitTimeout, true, func(context.Context) (bool, error) {
		routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
		for _, route := range routes {
			if route.Gw != nil {
				return true, err
			}
		}
		return false, err
	})
}
