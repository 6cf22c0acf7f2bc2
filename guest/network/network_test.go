package network

import (
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// card creates an interface in a new network namespace, for which the test's process must be root.
func card(t *testing.T) net.Interface {
	t.Helper()
	runtime.LockOSThread() // never unlocked: the thread exits after the test, and its namespace is removed
	if err := unix.Unshare(unix.CLONE_NEWNET); errors.Is(err, unix.EPERM) {
		t.Skip("creating a network namespace requires root; test/suites/guest configures a real card")
	} else if err != nil {
		t.Fatal(err)
	}
	// With an open queue, it has a carrier as soon as it is up, like virtio's interfaces.
	tap := &netlink.Tuntap{
		LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, Mode: netlink.TUNTAP_MODE_TAP, Queues: 1, NonPersist: true,
	}
	if err := netlink.LinkAdd(tap); errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		t.Skip("this machine cannot create tap devices; test/suites/guest configures a real card")
	} else if err != nil {
		t.Fatal(err)
	}
	for _, queue := range tap.Fds {
		t.Cleanup(func() { queue.Close() })
	}
	found, err := Card()
	if err == nil {
		err = Up(found)
	}
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestConnect(t *testing.T) {
	eth0 := card(t)
	for name, test := range map[string]struct{ address, peer netip.Addr }{
		"IPv4": {netip.MustParseAddr("10.77.0.16"), netip.MustParseAddr("10.77.0.2")},
		"IPv6": {netip.MustParseAddr("fd00::16"), netip.MustParseAddr("fd00::2")},
	} {
		t.Log(name)
		for range 2 { // Connect is idempotent
			if err := Connect(eth0, test.address, test.peer); err != nil {
				t.Fatal(err)
			}
		}
		addresses, err := netlink.AddrList(link(eth0), family(test.address))
		if err != nil {
			t.Fatal(err)
		}
		if !hasAddress(addresses, test.address, test.peer) {
			t.Errorf("got addresses %v, want %s peer %s", addresses, test.address, test.peer)
		}
		routes, err := netlink.RouteList(link(eth0), family(test.address))
		if err != nil {
			t.Fatal(err)
		}
		if !hasDefault(routes, test.peer) {
			t.Errorf("got routes %v, want a default route via %s", routes, test.peer)
		}
	}
	if now, err := net.InterfaceByIndex(eth0.Index); err != nil || now.Flags&net.FlagUp == 0 {
		t.Errorf("the interface is not up: %v, %v", now, err)
	}
}

func family(address netip.Addr) int {
	if address.Is4() {
		return netlink.FAMILY_V4
	}
	return netlink.FAMILY_V6
}

func hasAddress(addresses []netlink.Addr, address, peer netip.Addr) bool {
	for _, a := range addresses {
		ones, bits := a.Peer.Mask.Size()
		whole := ones == bits && bits == address.BitLen() && a.Scope == int(netlink.SCOPE_UNIVERSE)
		duplicates := address.Is6() && a.Flags&unix.IFA_F_NODAD == 0
		if whole && !duplicates && a.IP.Equal(address.AsSlice()) && a.Peer.IP.Equal(peer.AsSlice()) {
			return true
		}
	}
	return false
}

func hasDefault(routes []netlink.Route, gateway netip.Addr) bool {
	for _, r := range routes {
		ones := 0
		if r.Dst != nil {
			ones, _ = r.Dst.Mask.Size()
		}
		if ones == 0 && r.Gw.Equal(gateway.AsSlice()) && r.Table == unix.RT_TABLE_MAIN && r.Protocol == unix.RTPROT_BOOT {
			return true
		}
	}
	return false
}

func TestConnect_FailsWithoutInterface(t *testing.T) {
	err := Connect(net.Interface{Index: 1 << 20}, netip.MustParseAddr("10.77.0.16"), netip.MustParseAddr("10.77.0.2"))
	if err == nil {
		t.Error("Connect configured an interface that does not exist")
	}
}
