package packetsocket

import (
	"io"
	"log/slog"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millwright-dev/millwright/test/support/netns"
)

// waitTimeout limits every wait. It is reached only if a test fails.
const waitTimeout = time.Minute

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// testNetwork is a pod with the interface net1, which leads to another machine.
type testNetwork struct {
	t       *testing.T
	pod     *netns.Namespace
	machine *netns.Namespace
	// longest is the length of the longest frame for the guest.
	longest atomic.Int64
}

// guestMAC is the address of guests.
var guestMAC = net.HardwareAddr{0x02, 0, 0, 0xaa, 0xbb, 0x01}

func newTestNetwork(t *testing.T) *testNetwork {
	t.Helper()
	n := &testNetwork{t: t, pod: netns.New(t), machine: netns.New(t)}
	netns.Connect(n.pod, "net1", n.machine, "eth0")
	return n
}

// socket opens a socket in the pod.
func (n *testNetwork) socket() *Socket {
	n.t.Helper()
	var s *Socket
	n.pod.Do(func() (err error) {
		s, err = Open("net1", Guest{VM: "default/web", MAC: guestMAC}, slog.New(slog.DiscardHandler))
		return err
	})
	n.t.Cleanup(s.Close)
	return s
}

// open opens a socket in the pod, and passes frames between the socket and the returned connection.
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

// boot connects a namespace whose kernel acts as a guest, with a tap device as its network card. This kernel verifies all
// checksums.
func (n *testNetwork) boot(guest *netns.Namespace) {
	n.t.Helper()
	tap := guest.OpenTap("guest0", guestMAC)
	_, conn := n.open()
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
