// Package netns creates network namespaces for tests, with interfaces in them.
package netns

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Namespace is a network namespace that exists until the end of the test. Its loopback interface is up.
type Namespace struct {
	t     *testing.T
	calls chan func()
	// fd is a file descriptor of the namespace.
	fd int
}

// New returns a new namespace. It skips the test if the process may not create one.
func New(t *testing.T) *Namespace {
	t.Helper()
	n := &Namespace{t: t, calls: make(chan func())}
	created := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			n.fd, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}
		created <- err
		for call := range n.calls {
			call()
		}
	}()
	t.Cleanup(func() { close(n.calls) })
	if err := <-created; errors.Is(err, os.ErrPermission) {
		t.Skipf("cannot create a network namespace: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(n.fd) })
	n.Up("lo")
	return n
}

// Do calls a function in the namespace. An error fails the test.
func (n *Namespace) Do(call func() error) {
	n.t.Helper()
	if err := n.Try(call); err != nil {
		n.t.Fatal(err)
	}
}

// Try calls a function in the namespace and returns its error.
func (n *Namespace) Try(call func() error) error {
	done := make(chan error)
	n.calls <- func() { done <- call() }
	return <-done
}

// Up enables an interface of the namespace.
func (n *Namespace) Up(name string) {
	n.t.Helper()
	n.with(name, netlink.LinkSetUp)
}

// Down disables an interface of the namespace.
func (n *Namespace) Down(name string) {
	n.t.Helper()
	n.with(name, netlink.LinkSetDown)
}

// with calls a function in the namespace with one of its interfaces.
func (n *Namespace) with(name string, call func(netlink.Link) error) {
	n.t.Helper()
	n.Do(func() error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return call(link)
	})
}

// AddAddress adds an address to an interface of the namespace. It can be used immediately.
func (n *Namespace) AddAddress(name string, address netip.Prefix) {
	n.t.Helper()
	n.with(name, func(link netlink.Link) error {
		return netlink.AddrAdd(link, &netlink.Addr{
			IPNet: &net.IPNet{IP: address.Addr().AsSlice(), Mask: net.CIDRMask(address.Bits(), address.Addr().BitLen())},
			Flags: unix.IFA_F_NODAD,
		})
	})
}

// OpenTap creates a tap device in the namespace and enables it. Reads return the frames that the kernel sends, and
// writes deliver frames to it.
func (n *Namespace) OpenTap(name string, address net.HardwareAddr) *os.File {
	n.t.Helper()
	var tap *os.File
	n.Do(func() (err error) {
		tap, err = openTap(name, address)
		return err
	})
	n.t.Cleanup(func() { tap.Close() })
	n.Up(name)
	return tap
}

func openTap(name string, address net.HardwareAddr) (*os.File, error) {
	request, err := unix.NewIfreq(name)
	if err != nil {
		return nil, err
	}
	request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: "/dev/net/tun", Err: err}
	}
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	tap := os.NewFile(uintptr(fd), "tap") // not earlier: it begins to wait for frames
	link, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkSetHardwareAddr(link, address)
	}
	if err != nil {
		return nil, errors.Join(err, tap.Close())
	}
	return tap, nil
}

// Connect connects interfaces of two namespaces with each other, as a CNI plugin does, and enables them.
func Connect(from *Namespace, name string, to *Namespace, peer string) {
	from.t.Helper()
	from.Do(func() error {
		return netlink.LinkAdd(&netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: peer, PeerNamespace: netlink.NsFd(to.fd),
		})
	})
	from.Up(name)
	to.Up(peer)
}
