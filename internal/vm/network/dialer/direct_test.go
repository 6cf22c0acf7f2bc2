package dialer

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
)

var guestMAC = net.HardwareAddr{2, 0, 0, 0, 0, 0xa}

// newLink returns a Direct and the listener of a guest that echoes what it receives on port 7. Another port leads
// nowhere.
func newLink(ctx context.Context, t *testing.T, guest, own netip.Addr) (*Direct, *gonet.TCPListener) {
	t.Helper()
	endpoint := channel.New(queued, maxPacket, "")
	s, err := newStack(endpoint, guest)
	if err != nil {
		t.Fatal(err)
	}
	d, err := NewDirect(ctx, Link{Guest: guest, MAC: guestMAC, Own: own, Send: func(frame []byte) error {
		if string(frame[:6]) != string(guestMAC) {
			t.Errorf("a frame for another guest: %x", frame)
		}
		receive(endpoint, frame)
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer s.Destroy()
		for packet := endpoint.ReadContext(ctx); packet != nil; packet = endpoint.ReadContext(ctx) {
			d.Receive(frameOf(guestMAC, mac, packet))
			packet.DecRef()
		}
	}()
	listener, err := gonet.ListenTCP(s, fullAddress(netip.AddrPortFrom(guest, 7)), protocolOf(guest))
	if err != nil {
		t.Fatal(err)
	}
	return d, listener
}

// The guest gets all bytes and the end of each direction, over both IP versions.
func TestDirect_CarriesEveryByteBothWays(t *testing.T) {
	for name, addresses := range map[string][2]string{"IPv4": {"10.77.0.16", "10.77.0.3"}, "IPv6": {"fd77::16", "fd77::3"}} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			d, listener := newLink(ctx, t, netip.MustParseAddr(addresses[0]), netip.MustParseAddr(addresses[1]))
			origin := make(chan string, 1)
			go func() {
				conn, err := listener.Accept()
				if err != nil {
					return // the test has failed
				}
				origin <- conn.RemoteAddr().(*net.TCPAddr).IP.String()
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			}()
			conn, err := d.Dial(ctx, 7)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			text := strings.Repeat("0123456789abcdef", 64<<10) // more than all buffers
			go func() {
				_, _ = io.WriteString(conn, text)
				_ = conn.CloseWrite()
			}()
			got, err := io.ReadAll(conn)
			if err != nil || string(got) != text {
				t.Errorf("%d of %d bytes came back, %v", len(got), len(text), err)
			}
			if from := <-origin; from != addresses[1] {
				t.Errorf("the guest sees %s, want %s", from, addresses[1])
			}
			if _, err := d.Dial(ctx, 8); err == nil || ctx.Err() != nil {
				t.Errorf("a port on which nothing listens: %v", err)
			}
		})
	}
}

// Connections break when the guest terminates. A connection to a guest that does not respond has a time limit.
func TestDirect_BreaksWithLink(t *testing.T) {
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	d, _ := newLink(ctx, t, netip.MustParseAddr("10.77.0.16"), netip.MustParseAddr("10.77.0.3"))
	limit, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn, err := d.Dial(limit, 7)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	leave()
	if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("after the end of the link: %v", err)
	}
	silent, err := NewDirect(t.Context(), Link{
		Guest: netip.MustParseAddr("10.77.0.16"), MAC: guestMAC, Own: netip.MustParseAddr("10.77.0.3"), Send: func([]byte) error { return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	short, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer stop()
	if _, err := silent.Dial(short, 7); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a silent guest: %v", err)
	}
}

// TestDirect_GuestIsReset checks that a connection on which nothing is sent breaks when the guest has been reset, and not
// before.
func TestDirect_GuestIsReset(t *testing.T) {
	t.Parallel()
	for name, addresses := range map[string][2]string{"IPv4": {"10.77.0.16", "10.77.0.3"}, "IPv6": {"fd77::16", "fd77::3"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, _ := newLink(t.Context(), t, netip.MustParseAddr(addresses[0]), netip.MustParseAddr(addresses[1]))
			// Guests respond to two probes in a second.
			d.probes = keepAlive{idle: 600 * time.Millisecond, interval: 600 * time.Millisecond, count: 2}
			var connected atomic.Bool
			var probes atomic.Int32
			passed, guest := int32(d.probes.count+1), d.link.Send // the guest responds to more probes than may be lost
			d.link.Send = func(frame []byte) error {
				if connected.Load() && probes.Add(1) > passed {
					return nil
				}
				return guest(frame)
			}
			conn, err := d.Dial(t.Context(), 7)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			connected.Store(true)
			if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, io.EOF) {
				t.Errorf("the connection does not break: %v", err)
			}
			if lost := probes.Load() - passed; lost < int32(d.probes.count) {
				t.Errorf("the connection broke after %d probes without a response", lost)
			}
		})
	}
}
