package overlay

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/millwright-dev/millwright/internal/vm/network"
)

// host is an endpoint with a guest.
type host struct {
	*Endpoint
	port network.Port
	send func(frame []byte)
	// got receives the packets that the guest receives.
	got chan []byte
}

// portOf returns the port of the guest with a number.
func portOf(n byte) network.Port {
	return network.Port{
		VM: fmt.Sprintf("default/vm-%d", n), MAC: net.HardwareAddr{2, 0, 0, 0, 1, n},
		IPv4: netip.AddrFrom4([4]byte{10, 77, 0, n}), IPv6: netip.AddrFrom16([16]byte{0xfd, 0x77, 15: n}),
		Networks: []network.Network{
			{Prefix: netip.MustParsePrefix("10.77.0.0/16"), OnLink: []netip.Addr{netip.MustParseAddr("10.77.0.2")}},
			{Prefix: netip.MustParsePrefix("fd77::/64"), OnLink: []netip.Addr{netip.MustParseAddr("fd77::2")}},
		},
	}
}

func endpoint(t testing.TB, mtu int) *Endpoint {
	t.Helper()
	e, err := New(Config{Listen: netip.MustParseAddrPort("127.0.0.1:0"), MTU: mtu, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

// attach attaches the guest with a port, whose packets go to a channel.
func attach(t testing.TB, e *Endpoint, port network.Port) *host {
	t.Helper()
	h := &host{Endpoint: e, port: port, got: make(chan []byte, 2*maxQueued)}
	var err error
	h.send, err = e.Attach(t.Context(), port, func(framed []byte) error {
		for len(framed) > 0 {
			size := 4 + binary.BigEndian.Uint32(framed)
			frame := framed[4:size]
			if !bytes.Equal(frame[:6], port.MAC) {
				t.Errorf("a frame for %x", frame[:6])
			}
			select {
			case h.got <- slices.Clone(frame[14:]):
			default:
			}
			framed = framed[size:]
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// member returns the location of the guest.
func (h *host) member() Member {
	return Member{VM: h.port.VM, Key: h.Key(), Endpoint: h.Address(), Addresses: []netip.Addr{h.port.IPv4, h.port.IPv6}}
}

// hosts returns hosts that know each other.
func hosts(t testing.TB, mtu, count int) []*host {
	t.Helper()
	var all []*host
	for n := range count {
		all = append(all, attach(t, endpoint(t, mtu), portOf(byte(10+n))))
	}
	for _, h := range all {
		for _, other := range all {
			if other != h {
				h.Apply(Update{Present: []Member{other.member()}})
			}
		}
	}
	return all
}

// packet returns a UDP packet, with a payload of a size that begins with a byte. An IPv4 packet must not be fragmented.
func packet(from, to netip.Addr, first byte, size int) []byte {
	payload := make([]byte, 8+size)
	binary.BigEndian.PutUint16(payload[2:], 7)
	binary.BigEndian.PutUint16(payload[4:], uint16(len(payload)))
	payload[8] = first
	if from.Is6() {
		header := make([]byte, 8, 40)
		header[0], header[6], header[7] = 0x60, 17, 64
		binary.BigEndian.PutUint16(header[4:], uint16(len(payload)))
		return slices.Concat(header, from.AsSlice(), to.AsSlice(), payload)
	}
	header := make([]byte, 12, 20)
	header[0], header[6], header[8], header[9] = 0x45, 0x40, 64, 17
	binary.BigEndian.PutUint16(header[2:], uint16(20+len(payload)))
	return slices.Concat(header, from.AsSlice(), to.AsSlice(), payload)
}

// frame returns a frame of the guest. The test does not verify the checksum of IPv4.
func (h *host) frame(packet []byte) []byte {
	kind := []byte{8, 0}
	if packet[0]>>4 == 6 {
		kind = []byte{0x86, 0xdd}
	}
	return slices.Concat([]byte{2, 0, 0, 0, 0, 1}, h.port.MAC, kind, packet)
}

// sendsTo sends a packet to another guest, over IPv4.
func (h *host) sendsTo(to *host, first byte) {
	h.send(h.frame(packet(h.port.IPv4, to.port.IPv4, first, 100)))
}

// receives returns the next packet of the guest.
func (h *host) receives(t testing.TB) []byte {
	t.Helper()
	select {
	case got := <-h.got:
		return got
	case <-time.After(20 * time.Second):
		t.Fatalf("%s received nothing; %v", h.port.VM, h.Refused())
		return nil
	}
}

// receivesFirst checks the first byte of the payload of the next IPv4 packet.
func (h *host) receivesFirst(t testing.TB, want byte) {
	t.Helper()
	if got := h.receives(t); got[28] != want {
		t.Errorf("%s received the packet %d, want %d", h.port.VM, got[28], want)
	}
}

func TestEndpoint_CarriesPacketsBothWays(t *testing.T) {
	for name, listen := range map[string]string{"over IPv4": "127.0.0.1:0", "over IPv6": "[::1]:0"} {
		t.Run(name, func(t *testing.T) {
			var all []*host
			for n := range byte(2) {
				e, err := New(Config{Listen: netip.MustParseAddrPort(listen)})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(e.Close)
				if e.MTU() != MaxMTU {
					t.Errorf("the MTU on the loopback interface is %d", e.MTU())
				}
				all = append(all, attach(t, e, portOf(10+n)))
			}
			a, b := all[0], all[1]
			a.Apply(Update{Snapshot: true, Present: []Member{b.member()}})
			b.Apply(Update{Snapshot: true, Present: []Member{a.member()}})
			for i, pair := range [][2]*host{{a, b}, {b, a}, {a, b}} {
				from, to := pair[0], pair[1]
				for _, ips := range [][2]netip.Addr{{from.port.IPv4, to.port.IPv4}, {from.port.IPv6, to.port.IPv6}} {
					sent := packet(ips[0], ips[1], byte(i), 1400)
					from.send(from.frame(sent))
					got := to.receives(t)
					want := slices.Clone(sent)
					if ips[0].Is4() {
						want[8]--
						copy(want[10:12], got[10:12]) // the checksum changes with the hop limit
					} else {
						want[7]--
					}
					if !bytes.Equal(got, want) {
						t.Errorf("%s received %x, want %x", to.port.VM, got[:60], want[:60])
					}
				}
			}
		})
	}
}

func TestEndpoint_LongPackets(t *testing.T) {
	all := hosts(t, network.MinMTU, 2)
	a, b := all[0], all[1]
	long := packet(a.port.IPv4, b.port.IPv4, 1, 1400)
	a.send(a.frame(long))
	if got := a.receives(t); got[9] != 1 || got[20] != 3 || got[21] != 4 || binary.BigEndian.Uint16(got[26:]) != network.MinMTU {
		t.Errorf("the guest received %x, want the error that fragmentation is needed", got)
	}
	a.send(a.frame(packet(a.port.IPv6, b.port.IPv6, 1, 1400)))
	if got := a.receives(t); got[6] != 58 || got[40] != 2 || binary.BigEndian.Uint32(got[44:]) != network.MinMTU {
		t.Errorf("the guest received %x, want the error that the packet is too big", got)
	}
	long[6] = 0 // may be fragmented
	a.send(a.frame(long))
	first, second := b.receives(t), b.receives(t)
	if payload := slices.Concat(first[20:], second[20:]); !bytes.Equal(payload, long[20:]) {
		t.Errorf("received fragments of %d and %d bytes with another payload", len(first), len(second))
	}
}

func TestEndpoint_GuestSpoofsAddress(t *testing.T) {
	all := hosts(t, MaxMTU, 3)
	a, b, c := all[0], all[1], all[2]
	a.send(a.frame(packet(c.port.IPv4, b.port.IPv4, 1, 1)))
	a.send(a.frame(packet(c.port.IPv6, b.port.IPv6, 1, 1)))
	a.send(c.frame(packet(a.port.IPv4, b.port.IPv4, 1, 1)))
	a.sendsTo(b, 2)
	b.receivesFirst(t, 2)
	if got := a.Refused()[a.port.VM]; got[network.ForeignAddress] != 2 || got[network.ForeignMAC] != 1 {
		t.Errorf("refused %v", got)
	}
}

// TestEndpoint_HypervisorSpoofsAddress checks that a hypervisor that an attacker controls can send only as its own VM,
// and only packets that may be forwarded.
func TestEndpoint_HypervisorSpoofsAddress(t *testing.T) {
	all := hosts(t, MaxMTU, 3)
	a, b, c := all[0], all[1], all[2]
	taken := func(packet []byte) {
		if refusal := a.Endpoint.send(packet, a.holder(b.port.IPv4)); refusal != "" {
			t.Fatal(refusal)
		}
	}
	taken(packet(c.port.IPv4, b.port.IPv4, 1, 1))
	taken(packet(c.port.IPv6, b.port.IPv6, 1, 1))
	advertisement := packet(a.port.IPv6, b.port.IPv6, 1, 1)
	advertisement[6], advertisement[40] = 58, 136
	taken(advertisement)
	dhcp := packet(a.port.IPv4, b.port.IPv4, 1, 1)
	dhcp[23] = 68
	taken(dhcp)
	a.sendsTo(b, 2)
	b.receivesFirst(t, 2)
	got := b.Refused()[Others]
	if got[network.ForeignAddress] != 2 || got[network.LinkOnly] != 2 {
		t.Errorf("refused %v", got)
	}
	// The other guest's address leads to the other hypervisor, whatever this one claims.
	b.sendsTo(c, 3)
	c.receivesFirst(t, 3)
}

// TestEndpoint_OtherDestination checks that a guest receives only packets for its own addresses.
func TestEndpoint_OtherDestination(t *testing.T) {
	all := hosts(t, MaxMTU, 2)
	a, b := all[0], all[1]
	next := b.member()
	stranger := netip.MustParseAddr("10.77.0.99")
	next.Addresses = append(next.Addresses, stranger) // only this side believes so
	a.Apply(Update{Present: []Member{next}})
	a.send(a.frame(packet(a.port.IPv4, stranger, 1, 1)))
	a.sendsTo(b, 2)
	b.receivesFirst(t, 2)
	if got := b.Refused()[Others][network.NoGuest]; got != 1 {
		t.Errorf("refused %v", b.Refused())
	}
}

func TestEndpoint_RevokedKey(t *testing.T) {
	all := hosts(t, MaxMTU, 3)
	a, b, c := all[0], all[1], all[2]
	a.sendsTo(b, 1)
	b.receivesFirst(t, 1)
	b.Apply(Update{Absent: []string{a.port.VM}})
	before := b.Strangers()
	a.sendsTo(b, 2) // with the session that was valid
	for b.Strangers() == before {
		runtime.Gosched()
	}
	c.sendsTo(b, 3)
	b.receivesFirst(t, 3)
	b.sendsTo(a, 4)
	if got := b.Refused()[b.port.VM][network.NoGuest]; got != 1 {
		t.Errorf("refused %v", b.Refused())
	}
}

// TestEndpoint_LearnsLater checks that the first packets of a new VM arrive as soon as the other side knows the VM,
// which is before WireGuard repeats its handshake.
func TestEndpoint_LearnsLater(t *testing.T) {
	a, b := attach(t, endpoint(t, MaxMTU), portOf(10)), attach(t, endpoint(t, MaxMTU), portOf(11))
	a.Apply(Update{Present: []Member{b.member()}})
	a.sendsTo(b, 1)
	for b.Strangers() == 0 {
		runtime.Gosched()
	}
	begin := time.Now()
	b.Apply(Update{Present: []Member{a.member()}})
	b.receivesFirst(t, 1)
	if took := time.Since(begin); took > 4*time.Second {
		t.Errorf("the packet arrived after %s", took)
	}
}

func TestEndpoint_GuestMoves(t *testing.T) {
	all := hosts(t, MaxMTU, 2)
	a, b := all[0], all[1]
	a.sendsTo(b, 1)
	b.receivesFirst(t, 1)
	target := attach(t, endpoint(t, MaxMTU), b.port)
	target.Apply(Update{Snapshot: true, Present: []Member{a.member()}})
	b.Apply(Update{Absent: []string{a.port.VM}}) // the migrated guest's hypervisor has lost its authority
	a.Apply(Update{Present: []Member{target.member()}})
	a.sendsTo(target, 2)
	target.receivesFirst(t, 2)
	target.sendsTo(a, 3)
	a.receivesFirst(t, 3)
	if len(b.got) > 0 {
		t.Error("the source of the migration received packets of its former guest")
	}
	// The former key has no address any more.
	b.Apply(Update{Present: []Member{a.member()}})
	before := a.Strangers()
	b.sendsTo(a, 4)
	for a.Strangers() == before {
		runtime.Gosched()
	}
	target.sendsTo(a, 5)
	a.receivesFirst(t, 5)
}

// TestEndpoint_KnownVMsCostNothing checks that VMs without traffic have no WireGuard peer and no goroutine.
func TestEndpoint_KnownVMsCostNothing(t *testing.T) {
	all := hosts(t, MaxMTU, 2)
	a, b := all[0], all[1]
	routines := runtime.NumGoroutine()
	const count = 1000
	a.Apply(Update{Present: members(count)})
	if got := runtime.NumGoroutine(); got > routines {
		t.Errorf("%d goroutines, %d before", got, routines)
	}
	a.sendsTo(b, 1)
	b.receivesFirst(t, 1)
	if len(a.peers) != 1 {
		t.Errorf("%d peers after a packet to one VM", len(a.peers))
	}
}

// members returns the locations of VMs that do not respond.
func members(count int) []Member {
	var all []Member
	for i := range count {
		high, low := byte(i>>8), byte(i)
		all = append(all, Member{
			VM: fmt.Sprintf("default/other-%d", i), Key: Key{31: 1, 0: high, 1: low},
			Endpoint:  netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 1, high, low}), 8462),
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 77, 100 + high, low})},
		})
	}
	return all
}

// TestEndpoint_SilentHosts checks that packets to hosts that do not respond need little memory.
func TestEndpoint_SilentHosts(t *testing.T) {
	all := hosts(t, MaxMTU, 2)
	a, b := all[0], all[1]
	others := members(2 * maxSilent)
	a.Apply(Update{Present: others})
	for _, other := range others {
		for range 2 * maxPending {
			a.send(a.frame(packet(a.port.IPv4, other.Addresses[0], 1, 1)))
		}
	}
	if len(a.peers) > maxSilent {
		t.Errorf("%d peers that do not respond", len(a.peers))
	}
	if got, want := a.Refused()[a.port.VM], uint64(len(others)*maxPending); got[network.Unreachable]+got[network.QueueFull] < want {
		t.Errorf("refused %v, want at least %d", got, want)
	}
	for len(b.got) == 0 { // the queue to WireGuard may still be full
		a.sendsTo(b, 2)
		runtime.Gosched()
	}
	b.receivesFirst(t, 2)
}

func TestEndpoint_Silent(t *testing.T) {
	e := endpoint(t, MaxMTU)
	other := members(2)
	e.Apply(Update{Present: other})
	start := make([]byte, initiationSize)
	start[0] = typeInitiation
	socket := &bind{endpoint: e}
	for range 3 {
		if got := e.Silent(); len(got) > 0 {
			t.Errorf("%v is silent too early", got)
		}
		socket.sent(start, other[1].Endpoint)
	}
	if got := e.Silent(); len(got) != 1 || got[0].VM != other[1].VM {
		t.Errorf("%v is silent", got)
	}
	check := func() {
		t.Helper()
		e.configuring.Lock()
		defer e.configuring.Unlock()
		e.checkSilent()
		if len(e.silentChanged) != 1 {
			t.Error("the change is not announced")
		}
		<-e.silentChanged
		e.checkSilent()
		if len(e.silentChanged) != 0 {
			t.Error("announced without a change")
		}
	}
	check()
	e.accept(other[1].Endpoint, make([]byte, 92)) // its response
	check()
	if got := e.Silent(); len(got) > 0 {
		t.Errorf("%v is silent after a response", got)
	}
}

func TestEndpoint_RemovesIdlePeers(t *testing.T) {
	all := hosts(t, MaxMTU, 2)
	a, b := all[0], all[1]
	a.sendsTo(b, 1)
	b.receivesFirst(t, 1)
	prune := func(after time.Duration) int {
		a.configuring.Lock()
		defer a.configuring.Unlock()
		a.pruneAt(time.Now().Add(after))
		return len(a.peers)
	}
	if got := prune(sessionTime - 10*time.Second); got != 1 {
		t.Errorf("%d peers although the session may be valid", got)
	}
	if got := prune(idleTime + time.Second); got != 0 {
		t.Errorf("%d peers after the time", got)
	}
	a.sendsTo(b, 2)
	b.receivesFirst(t, 2)
}

// TestEndpoint_FloodDoesNotBlock checks that a guest that receives nothing does not delay others.
func TestEndpoint_FloodDoesNotBlock(t *testing.T) {
	all := hosts(t, MaxMTU, 2)
	a, b := all[0], all[1]
	blocked := make(chan struct{})
	defer close(blocked)
	if _, err := b.Attach(t.Context(), b.port, func([]byte) error { <-blocked; return nil }); err != nil {
		t.Fatal(err)
	}
	for b.Refused()[a.port.VM][network.QueueFull] == 0 {
		for range maxQueued {
			a.sendsTo(b, 1)
		}
		runtime.Gosched()
	}
	b.sendsTo(a, 2)
	a.receivesFirst(t, 2)
}

func TestNew_RefusesInvalidConfig(t *testing.T) {
	for name, config := range map[string]Config{
		"no address":        {},
		"any address":       {Listen: netip.MustParseAddrPort("0.0.0.0:0")},
		"a foreign address": {Listen: netip.MustParseAddrPort("192.0.2.1:0")},
		"a small MTU":       {Listen: netip.MustParseAddrPort("127.0.0.1:0"), MTU: network.MinMTU - 1},
		"a large MTU":       {Listen: netip.MustParseAddrPort("127.0.0.1:0"), MTU: MaxMTU + 1},
	} {
		t.Run(name, func(t *testing.T) {
			if e, err := New(config); err == nil {
				e.Close()
				t.Error("accepted")
			}
		})
	}
}

// TestEndpoint_SameKeyElsewhere checks that a hypervisor that has another endpoint is reached there, although packets are
// sent while the update is applied.
func TestEndpoint_SameKeyElsewhere(t *testing.T) {
	all := hosts(t, MaxMTU, 2)
	a, b := all[0], all[1]
	before := b.member()
	before.Endpoint = netip.MustParseAddrPort("127.0.0.1:9")
	a.Apply(Update{Present: []Member{before}})
	a.sendsTo(b, 1)
	old := a.holder(b.port.IPv4)
	a.mu.Lock()
	_, added := a.table.apply(Update{Present: []Member{b.member()}})
	a.mu.Unlock()
	if len(added) != 1 || !a.configure(added[0]) { // a packet that is sent now
		t.Fatal("the new endpoint is not used")
	}
	if a.remove(old) {
		t.Error("the key is removed although it is valid")
	}
	a.sendsTo(b, 2)
	got := b.receives(t)[28]
	if got == 1 { // WireGuard had not read the first packet before the endpoint changed
		got = b.receives(t)[28]
	}
	if got != 2 {
		t.Errorf("received the packet %d, want 2", got)
	}
}
