package overlay

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/millwright-dev/millwright/internal/vm/network"
)

// namespace is a network namespace whose kernel acts as a guest: it has a tap device in place of a network card.
type namespace struct {
	t     *testing.T
	calls chan func()
	tap   *os.File
	port  network.Port
}

// newNamespace returns a namespace with the addresses of a port. It skips the test if the process may not create one.
func newNamespace(t *testing.T, port network.Port) *namespace {
	t.Helper()
	n := &namespace{t: t, calls: make(chan func()), port: port}
	created := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			n.tap, err = openTap(port)
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
	t.Cleanup(func() { n.tap.Close() })
	return n
}

// do calls a function in the namespace.
func (n *namespace) do(call func()) {
	done := make(chan struct{})
	n.calls <- func() { defer close(done); call() }
	<-done
}

// openTap creates and configures the device in the namespace of the current thread.
func openTap(port network.Port) (*os.File, error) {
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
	tap := os.NewFile(uintptr(fd), "tap")
	link, err := netlink.LinkByName("guest0")
	if err != nil {
		return nil, err
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return nil, err
	}
	for _, step := range []func() error{
		func() error { return netlink.LinkSetUp(lo) },
		func() error { return netlink.LinkSetHardwareAddr(link, port.MAC) },
		func() error { return netlink.LinkSetUp(link) },
		func() error { return addAddress(link, netip.PrefixFrom(port.IPv4, 16)) },
		func() error { return addAddress(link, netip.PrefixFrom(port.IPv6, 64)) },
	} {
		if err := step(); err != nil {
			return nil, fmt.Errorf("configuring the tap device: %w", err)
		}
	}
	return tap, nil
}

func addAddress(link netlink.Link, address netip.Prefix) error {
	return netlink.AddrAdd(link, &netlink.Addr{
		IPNet: &net.IPNet{IP: address.Addr().AsSlice(), Mask: net.CIDRMask(address.Bits(), address.Addr().BitLen())},
		Flags: unix.IFA_F_NODAD,
	})
}

// plug connects the namespace to an endpoint, and unplugs it from an earlier one. A move of a VM does the same.
func (n *namespace) plug(e *Endpoint, sends chan<- func([]byte)) {
	n.t.Helper()
	send, err := e.Attach(n.t.Context(), n.port, func(framed []byte) error {
		for len(framed) > 0 {
			size := 4 + binary.BigEndian.Uint32(framed)
			if _, err := n.tap.Write(framed[4:size]); err != nil {
				return err
			}
			framed = framed[size:]
		}
		return nil
	})
	if err != nil {
		n.t.Fatal(err)
	}
	sends <- send
}

// forward sends what the namespace sends, with the last function from the channel.
func (n *namespace) forward(sends <-chan func([]byte)) {
	send := <-sends
	buffer := make([]byte, 1<<16)
	for {
		size, err := n.tap.Read(buffer)
		if err != nil {
			return
		}
		select {
		case send = <-sends:
		default:
		}
		send(append([]byte(nil), buffer[:size]...))
	}
}

// TestEndpoint_ConnectionSurvivesMove checks that a TCP connection between two kernels stays open while the VM of one of
// them moves to another hypervisor, and that both find the MTU.
func TestEndpoint_ConnectionSurvivesMove(t *testing.T) {
	for name, size := range map[string]int{"with a small MTU": network.MinMTU, "with the MTU of the link": MaxMTU} {
		t.Run(name, func(t *testing.T) {
			for version, address := range map[string]func(network.Port) netip.Addr{
				"IPv4": func(p network.Port) netip.Addr { return p.IPv4 }, "IPv6": func(p network.Port) netip.Addr { return p.IPv6 },
			} {
				t.Run(version, func(t *testing.T) { moveConnection(t, size, address) })
			}
		})
	}
}

func moveConnection(t *testing.T, mtu int, address func(network.Port) netip.Addr) {
	client, server := newNamespace(t, portOf(10)), newNamespace(t, portOf(11))
	from, source, target := endpoint(t, mtu), endpoint(t, mtu), endpoint(t, mtu)
	at := func(e *Endpoint, n *namespace) Member { return (&host{Endpoint: e, port: n.port}).member() }
	fromClient, fromServer := make(chan func([]byte), 1), make(chan func([]byte), 1)
	client.plug(from, fromClient)
	server.plug(source, fromServer)
	go client.forward(fromClient)
	go server.forward(fromServer)
	from.Apply(Update{Present: []Member{at(source, server)}})
	source.Apply(Update{Present: []Member{at(from, client)}})
	target.Apply(Update{Present: []Member{at(from, client)}})

	var listener net.Listener
	var conn net.Conn
	var err error
	server.do(func() { listener, err = net.Listen("tcp", netip.AddrPortFrom(address(server.port), 7).String()) })
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		accepted, err := listener.Accept()
		if err == nil {
			_, _ = io.Copy(accepted, accepted)
			accepted.Close()
		}
	}()
	client.do(func() { conn, err = net.DialTimeout("tcp", listener.Addr().String(), 20*time.Second) })
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	echo := func(size int) {
		t.Helper()
		_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
		sent := make([]byte, size)
		for i := range sent {
			sent[i] = byte(i >> 8)
		}
		go func() { _, _ = conn.Write(sent) }()
		got := make([]byte, size)
		if _, err := io.ReadFull(conn, got); err != nil {
			t.Fatalf("%v; client %v, source %v, target %v", err, from.Refused(), source.Refused(), target.Refused())
		}
		if string(got) != string(sent) {
			t.Error("other bytes came back")
		}
	}
	echo(64 << 10)
	begin := time.Now()
	server.plug(target, fromServer)
	source.Apply(Update{Absent: []string{client.port.VM}})
	from.Apply(Update{Present: []Member{at(target, server)}})
	echo(10)
	t.Logf("the first bytes came back after %s", time.Since(begin))
	echo(64 << 10)
}
