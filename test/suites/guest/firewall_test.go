package guest

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	"github.com/millwright-dev/millwright/test/support/initrd"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestGuest_LoopbackIsProtected checks that a guest whose root user is an attacker reaches only the permitted ports of
// the host's loopback, over both IP versions and many concurrent connections, whatever name it uses for the host.
func TestGuest_LoopbackIsProtected(t *testing.T) {
	tier.All(t)
	t.Parallel()
	config := direct(t)
	heard := &heard{}
	open4, open6 := echoServer(t, "127.0.0.1:0"), echoServer(t, "[::1]:0")
	closed4, closed6 := heard.tcp(t, "127.0.0.1:0"), heard.tcp(t, "[::1]:0")
	datagrams4, datagrams6 := heard.udp(t, "127.0.0.1:0"), heard.udp(t, "[::1]:0")
	config.Network.IPv6 = netip.MustParsePrefix("fd77::/64")
	config.Network.HostPorts = []uint16{open4, open6}
	config.Kernel.Initrd = intruder(t, config.Kernel.Initrd)
	config.Network.Address4 = address
	for _, try := range []string{
		"serve:10.0.2.16:9",
		fmt.Sprintf("echo:10.0.2.2:%d", open4),
		fmt.Sprintf("echo:[fd77::2]:%d", open6),
		fmt.Sprintf("tcp:10.0.2.2:%d", closed4),
		fmt.Sprintf("tcp:10.0.2.3:%d", closed4),
		fmt.Sprintf("tcp:[fd77::2]:%d", closed6),
		fmt.Sprintf("tcp:[fd77::99]:%d", closed6), // every address of the prefix is ::1
		fmt.Sprintf("udp:10.0.2.2:%d", datagrams4),
		fmt.Sprintf("udp:[fd77::2]:%d", datagrams6),
		fmt.Sprintf("udp:[fd77::99]:%d", datagrams6),
		fmt.Sprintf("raw:10.0.2.2:%d", datagrams4),
		fmt.Sprintf("raw:127.0.0.1:%d", datagrams4),
		fmt.Sprintf("raw:0.0.0.0:%d", datagrams4),
		fmt.Sprintf("raw:255.255.255.255:%d", datagrams4),
		fmt.Sprintf("frag:10.0.2.2:%d", datagrams4),
		fmt.Sprintf("frag:127.0.0.1:%d", datagrams4),
		fmt.Sprintf("opts:10.0.2.2:%d", datagrams4),
		fmt.Sprintf("vlan:10.0.2.2:%d", datagrams4),
		"tcp:169.254.169.254:80",
		// The same ports, with UDP.
		fmt.Sprintf("udp:10.0.2.2:%d", open4),
	} {
		config.Kernel.Cmdline += " try=" + try
	}
	guest := boot(t, config)
	guest.until("serving")
	if got := read(t, guest.Process, 9); got != "hello" {
		t.Errorf("a port of the guest reports %q", got)
	}
	output := guest.until("intruder: done")
	for _, version := range []string{"10.0.2.2", "[fd77::2]"} {
		if !strings.Contains(output, "tried echo:"+version) || strings.Count(output, "echoed 20 times") != 2 || strings.Count(output, "(<nil>)") < 2 {
			t.Errorf("an allowed port is not usable at %s", version)
		}
	}
	if got := heard.all(); len(got) > 0 {
		t.Errorf("the guest reached %q", got)
	}
	if strings.Contains(output, "connected") {
		t.Error("a connection to a port that is not allowed was made")
	}
}

// read returns the first output of the guest on a TCP port.
func read(t *testing.T, guest *qemu.Process, port uint16) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	conn, err := guest.DialGuest(ctx, port)
	must(t, err)
	defer conn.Close()
	must(t, conn.SetDeadline(time.Now().Add(waitTimeout)))
	printed, err := io.ReadAll(io.LimitReader(conn, 5))
	must(t, err)
	return string(printed)
}

// heard records what was reached. It should stay empty.
type heard struct {
	mu    sync.Mutex
	names []string
}

func (h *heard) add(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.names = append(h.names, name)
}

func (h *heard) all() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.names
}

func (h *heard) tcp(t *testing.T, address string) uint16 {
	t.Helper()
	return serve(t, address, func(conn net.Conn) {
		h.add("tcp " + address)
		_, _ = conn.Write([]byte("hello"))
	})
}

func (h *heard) udp(t *testing.T, address string) uint16 {
	t.Helper()
	conn, err := net.ListenPacket("udp", address)
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	go func() {
		buffer := make([]byte, 100)
		for {
			if _, _, err := conn.ReadFrom(buffer); err != nil {
				return // closed
			}
			h.add("udp " + address)
		}
	}()
	return uint16(conn.LocalAddr().(*net.UDPAddr).Port)
}

func echoServer(t *testing.T, address string) uint16 {
	t.Helper()
	return serve(t, address, func(conn net.Conn) { _, _ = io.Copy(conn, conn) })
}

// serve handles connections until the end of the test.
func serve(t *testing.T, address string, handle func(net.Conn)) uint16 {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	must(t, err)
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed
			}
			go func() {
				defer conn.Close()
				handle(conn)
			}()
		}
	}()
	return uint16(listener.Addr().(*net.TCPAddr).Port)
}

// intruder returns an initrd like the given one, with another program as the first.
func intruder(t *testing.T, original string) string {
	t.Helper()
	return initrd.With(t, original, "./intruder")
}
