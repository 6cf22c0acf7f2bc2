package dialer

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
)

var guestMAC = net.HardwareAddr{2, 0, 0, 0, 0, 0xa}

// newLink returns a Direct and the listener of a guest that echoes what it receives on port 7. Another port leads
// nowhere.
func newLink(ctx context.Context, t *testing.T, guest, own netip.Addr) (*Direct, *gonet.TCPListener) {
	t.Helper()
	d, s := newLinkTo(ctx, t, guest, own, tcp.NewProtocol)
	listener, err := gonet.ListenTCP(s, fullAddress(netip.AddrPortFrom(guest, 7)), protocolOf(guest))
	if err != nil {
		t.Fatal(err)
	}
	return d, listener
}

// newLinkTo returns a Direct, and the network stack of a guest with one transport protocol.
func newLinkTo(ctx context.Context, t *testing.T, guest, own netip.Addr, transport stack.TransportProtocolFactory) (*Direct, *stack.Stack) {
	t.Helper()
	endpoint := channel.New(queued, maxPacket, "")
	s, err := newStack(endpoint, guest, transport)
	if err != nil {
		t.Fatal(err)
	}
	d, err := NewDirect(ctx, Link{Guest: guest, MAC: guestMAC, Own: own, Send: func(frame []byte) error {
		if string(frame[:6]) != string(guestMAC) || len(frame) > header.EthernetMinimumSize+maxPacket {
			t.Errorf("a frame of %d bytes to %x", len(frame), frame[:6])
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
	return d, s
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

// echoDatagrams returns each datagram to port 7 of a guest, until the guest is gone. It sends the address of each client to
// the channel.
func echoDatagrams(t *testing.T, s *stack.Stack, guest netip.Addr) <-chan net.Addr {
	t.Helper()
	at := fullAddress(netip.AddrPortFrom(guest, 7))
	conn, err := gonet.DialUDP(s, &at, nil, protocolOf(guest))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	clients := make(chan net.Addr, 100)
	go func() {
		buffer := make([]byte, maxDatagram)
		for {
			n, client, err := conn.ReadFrom(buffer)
			if err != nil {
				return // the test is complete
			}
			clients <- client
			_, _ = conn.WriteTo(buffer[:n], client)
		}
	}()
	return clients
}

// Datagrams of all lengths reach the guest and return to their own flow, over both IP versions.
func TestDirect_CarriesDatagramsBothWays(t *testing.T) {
	for name, addresses := range map[string][2]string{"IPv4": {"10.77.0.16", "10.77.0.3"}, "IPv6": {"fd77::16", "fd77::3"}} {
		t.Run(name, func(t *testing.T) {
			guest := netip.MustParseAddr(addresses[0])
			d, s := newLinkTo(t.Context(), t, guest, netip.MustParseAddr(addresses[1]), udp.NewProtocol)
			clients := echoDatagrams(t, s, guest)
			origins := map[string]bool{}
			for flow := range 3 {
				responses := make(chan []byte, 1)
				f, err := d.DialUDP(7, func(datagram []byte) { responses <- bytes.Clone(datagram) })
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				for _, length := range []int{0, 1, 1452, 1472, 1473, 9000, maxDatagram} {
					sent := bytes.Repeat([]byte(strconv.Itoa(flow)), length)
					f.Send(sent)
					if got := <-responses; !bytes.Equal(got, sent) {
						t.Errorf("%d of %d bytes came back", len(got), length)
					}
					origin := (<-clients).(*net.UDPAddr)
					if origins[origin.String()] = true; origin.IP.String() != addresses[1] {
						t.Errorf("the guest sees %s, want %s", origin.IP, addresses[1])
					}
				}
				f.Send(make([]byte, maxDatagram+1)) // is dropped
			}
			if len(origins) != 3 {
				t.Errorf("three flows come from %v", origins)
			}
		})
	}
}

// datagram returns a frame of the guest with a datagram.
func datagram(t *testing.T, from, to netip.AddrPort, content string) []byte {
	t.Helper()
	endpoint := channel.New(queued, maxPacket, "")
	s, err := newStack(endpoint, from.Addr(), udp.NewProtocol)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Destroy()
	at, peer := fullAddress(from), fullAddress(to)
	conn, err := gonet.DialUDP(s, &at, &peer, protocolOf(from.Addr()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(content)); err != nil {
		t.Fatal(err)
	}
	packet := endpoint.Read()
	defer packet.DecRef()
	return frameOf(guestMAC, mac, packet)
}

// sentDatagrams returns a link to a guest, and the UDP headers of the datagrams to it.
func sentDatagrams(guest, own netip.Addr) (Link, <-chan header.UDP) {
	sent := make(chan header.UDP, 10)
	return Link{Guest: guest, MAC: guestMAC, Own: own, Send: func(frame []byte) error {
		if isDatagram(frame) { // and not an ICMP error
			sent <- frame[header.EthernetMinimumSize+header.IPv4MinimumSize:]
		}
		return nil
	}}, sent
}

// A flow receives only from the port of the guest to which it sends, and neither sends nor receives once it is closed.
func TestDirect_FlowReceivesOnlyFromItsPort(t *testing.T) {
	guest, own := netip.MustParseAddr("10.77.0.16"), netip.MustParseAddr("10.77.0.3")
	link, sent := sentDatagrams(guest, own)
	d, err := NewDirect(t.Context(), link)
	if err != nil {
		t.Fatal(err)
	}
	received := make(chan string, 10)
	open := func() (f Flow, to netip.AddrPort) {
		f, err := d.DialUDP(7, func(datagram []byte) { received <- string(datagram) })
		if err != nil {
			t.Fatal(err)
		}
		f.Send([]byte("request"))
		return f, netip.AddrPortFrom(own, (<-sent).SourcePort())
	}
	f, to := open()
	broken := datagram(t, netip.AddrPortFrom(guest, 7), to, "broken")
	broken[len(broken)-1]++
	for _, frame := range [][]byte{
		datagram(t, netip.AddrPortFrom(guest, 8), to, "another port"),
		datagram(t, netip.MustParseAddrPort("10.77.0.17:7"), to, "another address"),
		datagram(t, netip.AddrPortFrom(guest, 7), netip.AddrPortFrom(own, to.Port()^1), "another flow"),
		broken, broken[:20],
		datagram(t, netip.AddrPortFrom(guest, 7), to, "response"),
	} {
		d.Receive(frame)
	}
	if got := <-received; got != "response" {
		t.Errorf("the flow received %q", got)
	}
	f.Close()
	_, next := open()
	f.Send([]byte("closed"))
	d.Receive(datagram(t, netip.AddrPortFrom(guest, 7), to, "late"))
	d.Receive(datagram(t, netip.AddrPortFrom(guest, 7), next, "next"))
	if got := <-received; got != "next" || len(sent) > 0 {
		t.Errorf("a closed flow received %q, and sent %d datagrams", got, len(sent))
	}
}

// TestDirect_GuestFloodsFlow checks that a guest cannot block the process or fill its memory with datagrams, also empty
// ones, that a client does not receive.
func TestDirect_GuestFloodsFlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		guest, own := netip.MustParseAddr("10.77.0.16"), netip.MustParseAddr("10.77.0.3")
		link, sent := sentDatagrams(guest, own)
		d, err := newDatagrams(ctx, link)
		if err != nil {
			t.Fatal(err)
		}
		received, blocked := 0, make(chan struct{})
		f, err := d.open(7, func([]byte) {
			received++
			<-blocked
		})
		if err != nil {
			t.Fatal(err)
		}
		f.Send(nil)
		to := netip.AddrPortFrom(own, (<-sent).SourcePort())
		frame := datagram(t, netip.AddrPortFrom(guest, 7), to, "")
		for range 10 * maxReceived {
			receive(d.endpoint, frame)
		}
		synctest.Wait()
		close(blocked)
		synctest.Wait()
		if received > maxReceived+1 {
			t.Errorf("%d datagrams were waiting", received)
		}
		cancel()
		synctest.Wait()
	})
}
