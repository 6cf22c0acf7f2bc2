package packetsocket

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/millwright-dev/millwright/internal/vm/network"
	"github.com/millwright-dev/millwright/test/support/netns"
)

// addressing are the addresses of the guest and the other machine.
type addressing struct{ guest, machine netip.Prefix }

var versions = map[string]addressing{
	"IPv4": {netip.MustParsePrefix("192.0.2.22/24"), netip.MustParsePrefix("192.0.2.1/24")},
	"IPv6": {netip.MustParsePrefix("2001:db8::22/64"), netip.MustParsePrefix("2001:db8::1/64")},
}

// TestSocket_CarriesTCP checks that a guest without offloads exchanges data with a machine whose kernel leaves checksums and
// segmentation to the network card, as with the interfaces of Pods.
func TestSocket_CarriesTCP(t *testing.T) {
	for name, addresses := range versions {
		t.Run(name, func(t *testing.T) {
			n := newTestNetwork(t)
			guest := netns.New(t)
			n.boot(guest)
			guest.AddAddress("guest0", addresses.guest)
			n.machine.AddAddress("eth0", addresses.machine)
			for direction, pair := range map[string]struct{ server, client *netns.Namespace }{
				"to the guest": {guest, n.machine}, "from the guest": {n.machine, guest},
			} {
				at := addresses.guest.Addr()
				if pair.server == n.machine {
					at = addresses.machine.Addr()
				}
				sent := make([]byte, 4<<20)
				_, _ = rand.Read(sent)
				if got := transfer(t, pair.server, pair.client, at, sent); !bytes.Equal(got, sent) {
					t.Errorf("%s: %d of %d bytes arrived, or others", direction, len(got), len(sent))
				}
			}
			guest.Do(func() error { return wantNoErrors(t, "guest0") })
			if longest := n.longest.Load(); longest > ethernetHeader+1500 {
				t.Errorf("the guest got a frame of %d bytes, which its network card would drop", longest)
			}
		})
	}
}

// wantNoErrors checks that no frame of a network card was invalid.
func wantNoErrors(t *testing.T, name string) error {
	link, err := netlink.LinkByName(name)
	if err == nil && link.Attrs().Statistics.RxErrors+link.Attrs().Statistics.RxDropped > 0 {
		t.Errorf("%s dropped frames: %+v", name, link.Attrs().Statistics)
	}
	return err
}

// transfer sends data from a client to a server at an address, and returns what arrives.
func transfer(t *testing.T, server, client *netns.Namespace, at netip.Addr, data []byte) []byte {
	t.Helper()
	var listener net.Listener
	server.Do(func() (err error) {
		listener, err = net.Listen("tcp", netip.AddrPortFrom(at, 0).String())
		return err
	})
	defer listener.Close()
	received := make(chan []byte, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			received <- nil
			return
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(waitTimeout))
		all, _ := io.ReadAll(conn)
		received <- all
	}()
	var conn net.Conn
	client.Do(func() (err error) {
		conn, err = (&net.Dialer{Timeout: waitTimeout}).Dial("tcp", listener.Addr().String())
		return err
	})
	must(t, conn.SetDeadline(time.Now().Add(waitTimeout)))
	_, err := conn.Write(data)
	must(t, err)
	must(t, conn.Close())
	return <-received
}

// frame returns an Ethernet frame with a type that no protocol uses.
func frame(to, from net.HardwareAddr, text string) []byte {
	content := append(append(append([]byte{}, to...), from...), 0x88, 0xb5)
	return append(content, text+string(make([]byte, 60))...)
}

var (
	broadcast  = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	otherMAC   = net.HardwareAddr{0x02, 0, 0, 0xaa, 0xbb, 0x02}
	bridgesMAC = net.HardwareAddr{0x01, 0x80, 0xc2, 0, 0, 0}
)

// TestSocket_RefusesForeignAddresses checks that a guest cannot send from the address of another machine, or to the bridges
// of the network.
func TestSocket_RefusesForeignAddresses(t *testing.T) {
	n := newTestNetwork(t)
	s, guest := n.open()
	seen := n.raw()
	for _, sent := range [][]byte{
		frame(broadcast, otherMAC, "another address"), frame(bridgesMAC, guestMAC, "a spanning tree"), guestMAC, frame(broadcast, guestMAC, "last"),
	} {
		_, err := guest.Write(sent)
		must(t, err)
	}
	if got, want := next(t, seen), frame(broadcast, guestMAC, "last"); !bytes.Equal(got, want) {
		t.Errorf("the network got %q", got)
	}
	want := map[network.Refusal]uint64{network.ForeignMAC: 1, network.LinkOnly: 1, network.Malformed: 1}
	if got := s.refused.All()["default/web"]; len(got) != len(want) || got[network.ForeignMAC] != 1 || got[network.LinkOnly] != 1 || got[network.Malformed] != 1 {
		t.Errorf("refused %v, want %v", got, want)
	}
}

// TestSocket_DeliversFramesForGuest checks that a guest gets only frames to its own address and to group addresses.
func TestSocket_DeliversFramesForGuest(t *testing.T) {
	n := newTestNetwork(t)
	_, guest := n.open()
	machine := n.raw()
	send := func(frame []byte) { t.Helper(); _, err := machine.Write(frame); must(t, err) }
	send(frame(otherMAC, bridgesMAC, "for another guest"))
	send(frame(bridgesMAC, otherMAC, "for bridges"))
	for _, sent := range [][]byte{frame(broadcast, otherMAC, "for all"), frame(guestMAC, otherMAC, "for the guest")} {
		send(sent)
		if got := next(t, guest); !bytes.Equal(got, sent) {
			t.Errorf("the guest got %q, want %q", got, sent)
		}
	}
}

// TestSocket_KeepsVLANTags checks that a guest gets a frame of a VLAN with its tag, although the kernel removes the tag.
func TestSocket_KeepsVLANTags(t *testing.T) {
	n := newTestNetwork(t)
	_, guest := n.open()
	plain := frame(guestMAC, otherMAC, "in a VLAN")
	tagged := append(append(append([]byte{}, plain[:12]...), 0x81, 0, 0x20, 7), plain[12:]...)
	_, err := n.raw().Write(tagged)
	must(t, err)
	if got := next(t, guest); !bytes.Equal(got, tagged) {
		t.Errorf("the guest got %x, want %x", got, tagged)
	}
}

// TestSocket_PassReturnsWithoutGuest checks that Pass returns when its guest is gone, even if no frame arrives, and that the next
// guest then gets the frames.
func TestSocket_PassReturnsWithoutGuest(t *testing.T) {
	n := newTestNetwork(t)
	s := n.socket()
	for range 2 {
		guest, connection := datagrams(t)
		passed := make(chan struct{})
		go func() { defer close(passed); s.Pass(connection) }()
		sent := frame(guestMAC, otherMAC, "for the guest")
		_, err := n.raw().Write(sent)
		must(t, err)
		if got := next(t, guest); !bytes.Equal(got, sent) {
			t.Errorf("the guest got %q, want %q", got, sent)
		}
		n.machine.Down("eth0")
		must(t, connection.Close())
		select {
		case <-passed:
		case <-time.After(waitTimeout):
			t.Fatal("Pass waits for a frame although the guest is gone")
		}
		n.machine.Up("eth0")
	}
}

// TestSocket_ReportsMissingInterface checks the error if no CNI plugin has created the interface.
func TestSocket_ReportsMissingInterface(t *testing.T) {
	pod := netns.New(t)
	err := pod.Try(func() error {
		_, err := Open("net1", Guest{MAC: guestMAC}, slog.New(slog.DiscardHandler))
		return err
	})
	if !errors.Is(err, ErrNoInterface) {
		t.Errorf("got %v", err)
	}
}

// raw returns a packet socket of the other machine, for frames with the type of frame.
func (n *testNetwork) raw() *os.File {
	n.t.Helper()
	var file *os.File
	n.machine.Do(func() error {
		device, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		const kind = 0x88b5 // the type in frame
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(bigEndian(kind)))
		if err != nil {
			return err
		}
		file = os.NewFile(uintptr(fd), "eth0")
		return errors.Join(
			unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: bigEndian(kind), Ifindex: device.Index}))
	})
	n.t.Cleanup(func() { _ = file.Close() })
	return file
}

// next returns the next frame with the type of frame.
func next(t *testing.T, from interface {
	io.Reader
	SetReadDeadline(deadline time.Time) error
}) []byte {
	t.Helper()
	must(t, from.SetReadDeadline(time.Now().Add(waitTimeout)))
	buffer := make([]byte, maxFrame)
	for {
		n, err := from.Read(buffer)
		must(t, err)
		if bytes.Contains(buffer[:min(n, 20)], []byte{0x88, 0xb5}) { // ignores frames of the kernel
			return buffer[:n]
		}
	}
}
