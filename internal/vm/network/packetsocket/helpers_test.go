package packetsocket

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// waitTimeout limits every wait. It is reached only if a test fails.
const waitTimeout = time.Minute

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// namespace is a network namespace.
type namespace struct {
	t     *testing.T
	calls chan func()
	id    int // a file descriptor
}

func newNamespace(t *testing.T) *namespace {
	t.Helper()
	n := &namespace{t: t, calls: make(chan func())}
	created := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			n.id, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
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
	t.Cleanup(func() { _ = unix.Close(n.id) })
	n.do(func() error { return up("lo") })
	return n
}

// do calls a function in the namespace.
func (n *namespace) do(call func() error) {
	n.t.Helper()
	if err := n.try(call); err != nil {
		n.t.Fatal(err)
	}
}

// try returns the error of a function that is called in the namespace.
func (n *namespace) try(call func() error) error {
	done := make(chan error)
	n.calls <- func() { done <- call() }
	return <-done
}

func up(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(link)
}

func down(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetDown(link)
}

// address adds an address to an interface of the namespace.
func (n *namespace) address(name string, prefix netip.Prefix) {
	n.t.Helper()
	n.do(func() error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return netlink.AddrAdd(link, &netlink.Addr{
			IPNet: &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())},
			Flags: unix.IFA_F_NODAD,
		})
	})
}

// connect connects two namespaces with a pair of interfaces, as a CNI plugin does.
func connect(from *namespace, name string, to *namespace, peer string) {
	from.t.Helper()
	from.do(func() error {
		err := netlink.LinkAdd(&netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: peer, PeerNamespace: netlink.NsFd(to.id),
		})
		if err != nil {
			return err
		}
		return up(name)
	})
	to.do(func() error { return up(peer) })
}

// testNetwork is a pod with the interface net1, which leads to another machine.
type testNetwork struct {
	t       *testing.T
	pod     *namespace
	machine *namespace
	// longest is the length of the longest frame for the guest.
	longest atomic.Int64
}

// guestMAC is the address of guests.
var guestMAC = net.HardwareAddr{0x02, 0, 0, 0xaa, 0xbb, 0x01}

func newTestNetwork(t *testing.T) *testNetwork {
	t.Helper()
	n := &testNetwork{t: t, pod: newNamespace(t), machine: newNamespace(t)}
	connect(n.pod, "net1", n.machine, "eth0")
	return n
}

// socket opens a socket in the pod.
func (n *testNetwork) socket() *Socket {
	n.t.Helper()
	var s *Socket
	n.pod.do(func() (err error) {
		s, err = Open("net1", Guest{VM: "default/web", MAC: guestMAC}, slog.New(slog.DiscardHandler))
		return err
	})
	n.t.Cleanup(s.Close)
	return s
}

// open opens a socket in the pod, and passes frames between it and the returned connection.
func (n *testNetwork) open() (*Socket, net.Conn) {
	n.t.Helper()
	s := n.socket()
	ours, theirs := datagrams(n.t)
	passed := make(chan struct{})
	go func() { defer close(passed); s.Pass(theirs) }()
	n.t.Cleanup(func() {
		_ = theirs.Close()
		<-passed
	})
	return s, ours
}

// datagrams returns a connection, from both sides, that preserves the boundaries of messages.
func datagrams(t *testing.T) (ours, theirs net.Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	var conns []net.Conn
	for _, fd := range fds {
		file := os.NewFile(uintptr(fd), "connection")
		conn, err := net.FileConn(file)
		must(t, err)
		_ = file.Close()
		t.Cleanup(func() { _ = conn.Close() })
		conns = append(conns, conn)
	}
	return conns[0], conns[1]
}

// boot connects a namespace whose kernel acts as a guest, with a tap device as its network card.
func (n *testNetwork) boot(guest *namespace) {
	n.t.Helper()
	var tap *os.File
	guest.do(func() (err error) { tap, err = openTap(); return err })
	_, conn := n.open()
	n.t.Cleanup(func() { _ = tap.Close() })
	pump := func(from io.Reader, to io.Writer, seen func(size int)) {
		frame := make([]byte, maxFrame)
		for {
			size, err := from.Read(frame)
			if err != nil {
				return
			}
			seen(size)
			_, _ = to.Write(frame[:size])
		}
	}
	go pump(tap, conn, func(int) {})
	go pump(conn, tap, func(size int) { n.longest.Store(max(n.longest.Load(), int64(size))) })
}

// openTap creates the network card of a guest in the namespace of the current thread. The
// kernel of the guest verifies all checksums.
func openTap() (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: "/dev/net/tun", Err: err}
	}
	request, err := unix.NewIfreq("guest0")
	if err != nil {
		return nil, err
	}
	request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		return nil, err
	}
	link, err := netlink.LinkByName("guest0")
	if err != nil {
		return nil, err
	}
	if err := errors.Join(netlink.LinkSetHardwareAddr(link, guestMAC), netlink.LinkSetUp(link)); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "tap"), nil
}
