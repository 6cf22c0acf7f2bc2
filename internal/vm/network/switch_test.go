package network

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// plug connects a port. In a synctest bubble, it returns when all goroutines are idle.
func plug(t *testing.T, s *Switch, port Port) net.Conn {
	t.Helper()
	ours, theirs := net.Pipe()
	go func() { _ = s.serve(t.Context(), theirs) }()
	t.Cleanup(func() { ours.Close() })
	hello, err := json.Marshal(port)
	if err != nil {
		t.Fatal(err)
	}
	send(t, ours, hello)
	return ours
}

func send(t *testing.T, conn net.Conn, content []byte) {
	t.Helper()
	if _, err := conn.Write(framed(content)); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
}

// gets reads a frame, or returns nil if no frame arrives.
func gets(t *testing.T, conn net.Conn) []byte {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	frame, err := readFrame(bufio.NewReader(conn), maxFrame)
	if err != nil {
		return nil
	}
	return frame
}

func refusals(s *Switch, port Port, reason Refusal) uint64 { return s.Refused()[port.VM][reason] }

func quiet() *Switch { return NewSwitch(slog.New(slog.DiscardHandler)) }

func TestSwitch_GuestsReachEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := quiet()
		a, b := plug(t, s, alice), plug(t, s, bob)
		for _, to := range []string{"10.77.0.11", "fd77::b"} {
			sent := udp(to, 7)
			send(t, a, sent)
			got := gets(t, b)
			if len(got) != len(sent) || !bytes.Equal(got[:6], bob.MAC) || !bytes.Equal(got[len(got)-12:], sent[len(sent)-12:]) {
				t.Errorf("sent %x, got %x", sent, got)
			}
		}
		send(t, a, udp("10.77.0.12", 7))
		send(t, a, with(udp("10.77.0.11", 7), etherSource, bob.MAC...))
		send(t, a, arp(alice.MAC, bob.IPv4))
		send(t, a, make([]byte, maxFrame+1))
		if got := gets(t, b); got != nil {
			t.Errorf("bob got %x", got)
		}
		for _, reason := range []Refusal{NoGuest, ForeignMAC, ForeignAddress, Malformed} {
			if got := refusals(s, alice, reason); got != 1 {
				t.Errorf("%d frames refused as %s, want 1", got, reason)
			}
		}
		send(t, a, udp("10.77.0.11", 7)) // the port still works
		if gets(t, b) == nil {
			t.Error("no frame arrived after refused frames")
		}
	})
}

// Another VM does not get the address, neither before nor after it was used.
func TestSwitch_AddressBelongsToOneVM(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := quiet()
		a, b := plug(t, s, alice), plug(t, s, bob)
		other := bob
		other.VM = "default/other"
		if err := s.attach(&attached{Port: other}); !errors.Is(err, ErrTaken) {
			t.Errorf("got %v, want ErrTaken", err)
		}
		plug(t, s, other)
		send(t, a, udp("10.77.0.11", 7))
		if gets(t, b) == nil {
			t.Error("the packet did not reach its guest")
		}
		b.Close()
		synctest.Wait()
		reused := plug(t, s, other) // the address is free now
		send(t, a, udp("10.77.0.11", 7))
		if gets(t, reused) == nil {
			t.Error("the address of a removed VM is not free")
		}
	})
}

// No other guest receives a frame that would make it send its packets to the wrong place. A guest that tries this
// keeps its own connectivity.
func TestSwitch_SpoofedFramesAreDropped(t *testing.T) {
	advertisement := func(kind byte) []byte { return ip("fd77::b", protocolICMPv6, kind, 0, 0, 0) }
	toAll := func(frame []byte) []byte { return with(frame, 0, 0x33, 0x33, 0, 0, 0, 1) }
	gateway := netip.MustParseAddr("10.77.0.2")
	for name, test := range map[string]struct {
		frame []byte
		want  Refusal
	}{
		"ARP: bob's address is mine":         {arp(alice.MAC, bob.IPv4), ForeignAddress},
		"ARP: the gateway's address is mine": {arp(alice.MAC, gateway), ForeignAddress},
		"ARP: my address is at bob":          {arp(bob.MAC, alice.IPv4), ForeignMAC},
		"DHCP: this is your address":         {udp("10.77.0.11", portDHCPClient), LinkOnly},
		"DHCP: broadcast":                    {with(udp("255.255.255.255", portDHCPClient), 0, 255, 255, 255, 255, 255, 255), LinkOnly},
		"DHCPv6: this is your address":       {udp("fd77::b", portDHCPv6Client), LinkOnly},
		"I am a router":                      {advertisement(134), LinkOnly},
		"I am a router, multicast":           {toAll(with(advertisement(134), etherHeader+destination6, netip.MustParseAddr("ff02::1").AsSlice()...)), LinkOnly},
		"I am your neighbor":                 {advertisement(136), LinkOnly},
		"go by another way":                  {advertisement(137), LinkOnly},
		"I am bob":                           {with(udp("10.77.0.11", 7), etherHeader+source4, bob.IPv4.AsSlice()...), ForeignAddress},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := quiet()
				a, b := plug(t, s, alice), plug(t, s, bob)
				send(t, a, test.frame)
				if got := gets(t, b); got != nil {
					t.Errorf("bob got %x", got)
				}
				if got := refusals(s, alice, test.want); got != 1 {
					t.Errorf("refused: %v", s.Refused())
				}
				send(t, a, udp("10.77.0.11", 7))
				if gets(t, b) == nil {
					t.Error("bob no longer gets frames")
				}
			})
		})
	}
}

// Packets go to where a guest was last seen. An announcement is sufficient.
func TestSwitch_GuestMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := quiet()
		from, b := plug(t, s, alice), plug(t, s, bob)
		to := plug(t, s, alice)
		response := func() []byte {
			frame := udp("10.77.0.10", 7)
			copy(frame[etherSource:], bob.MAC)
			copy(frame[etherHeader+source4:], bob.IPv4.AsSlice())
			return frame
		}
		send(t, b, response())
		if gets(t, from) == nil {
			t.Error("a guest that has not moved yet gets no frames")
		}
		send(t, to, arp(alice.MAC, alice.IPv4))
		send(t, b, response())
		if gets(t, to) == nil {
			t.Error("a guest that has moved gets no frames")
		}
		to.Close() // the migration has failed, so the guest returns
		synctest.Wait()
		send(t, b, response())
		if gets(t, from) == nil {
			t.Error("a guest whose migration failed gets no frames")
		}
	})
}

// A guest that does not accept frames does not affect the others, and the log about it is limited.
func TestSwitch_FloodDoesNotAffectOtherGuests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		s := NewSwitch(slog.New(slog.NewTextHandler(&log, nil)))
		carol := Port{VM: "default/carol", MAC: net.HardwareAddr{2, 0, 0, 0, 0, 0xc}, IPv4: alice.IPv4.Next().Next()}
		a := plug(t, s, alice)
		plug(t, s, bob) // never reads
		c := plug(t, s, carol)
		for range 3 * maxQueued {
			send(t, a, udp("10.77.0.11", 7))
			send(t, a, with(udp("10.77.0.11", 7), etherSource, bob.MAC...))
		}
		if got := refusals(s, alice, QueueFull); got < maxQueued || got >= 3*maxQueued {
			t.Errorf("%d frames were dropped", got)
		}
		send(t, a, udp("10.77.0.12", 7))
		if gets(t, c) == nil {
			t.Error("another guest gets no frames")
		}
		if lines := strings.Count(log.String(), "\n"); lines != 1 {
			t.Errorf("%d lines were logged:\n%s", lines, &log)
		}
		time.Sleep(logInterval)
		send(t, a, with(udp("10.77.0.11", 7), etherSource, bob.MAC...))
		if lines := strings.Count(log.String(), "\n"); lines != 2 {
			t.Errorf("%d lines were logged after a while:\n%s", lines, &log)
		}
	})
}

// A connection that does not send a valid port is closed.
func TestSwitch_InvalidPortIsClosed(t *testing.T) {
	for name, hello := range map[string]string{
		"no JSON": "hello", "no VM": `{"mac":"AgAAAAAK"}`, "no MAC": `{"vm":"a/b"}`,
		"a loopback address": `{"vm":"a/b","mac":"AgAAAAAK","ipv4":"127.0.0.1"}`,
		"a metadata service": `{"vm":"a/b","mac":"AgAAAAAK","ipv6":"fd00:42::42"}`,
		"a NAT64 address":    `{"vm":"a/b","mac":"AgAAAAAK","ipv6":"64:ff9b::7f00:1"}`,
		"the wrong version":  `{"vm":"a/b","mac":"AgAAAAAK","ipv4":"fd77::a"}`,
		"too long":           strings.Repeat(" ", maxHello+1),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ours, theirs := net.Pipe()
				defer ours.Close()
				ended := make(chan error, 1)
				go func() { ended <- quiet().serve(t.Context(), theirs) }()
				if _, err := ours.Write(framed([]byte(hello))); err != nil {
					t.Fatal(err)
				}
				if err := <-ended; err == nil {
					t.Error("the port was accepted")
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer ours.Close()
		if err := quiet().serve(t.Context(), theirs); !errors.Is(err, context.DeadlineExceeded) && !strings.Contains(err.Error(), "timeout") {
			t.Errorf("a client that sends nothing: error = %v", err)
		}
	})
}

// Guests reach each other through links, also after a restart of the switch, and if the path of the directory is
// long.
func TestLink_Join(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	socket := filepath.Join(t.TempDir(), strings.Repeat("x", 200), "switch.sock")
	makeDirectory(t, socket)
	stop := startSwitch(t, socket)
	got := make(chan []byte, 1)
	a, err := Join(ctx, socket, alice, func([]byte) error { return nil }, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	b, err := Join(ctx, socket, bob, func(frame []byte) error {
		select {
		case got <- frame:
		default:
		}
		return nil
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	sendUntil(t, a, got)
	stop()
	for len(got) > 0 {
		<-got
	}
	stop = startSwitch(t, socket)
	sendUntil(t, a, got)
	stop()
	cancel()
	<-a.Done()
	<-b.Done()
	a.Send(udp("10.77.0.11", 7)) // no one receives it
}

// The link terminates with its guest.
func TestLink_StopsWithGuest(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "switch.sock")
	defer startSwitch(t, socket)()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a, err := Join(ctx, socket, alice, func([]byte) error { return io.ErrClosedPipe }, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	b, err := Join(ctx, socket, bob, func([]byte) error { return nil }, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	response := udp("10.77.0.10", 7)
	copy(response[etherSource:], bob.MAC)
	copy(response[etherHeader+source4:], bob.IPv4.AsSlice())
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for {
		b.Send(bytes.Clone(response))
		select {
		case <-a.Done():
			return
		case <-again.C:
		}
	}
}
