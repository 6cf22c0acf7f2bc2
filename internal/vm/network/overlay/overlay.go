// Package overlay carries packets between guests on different hosts, over WireGuard.
//
// An [Endpoint] is the network of one guest. It has a key that only this process knows, and learns the keys of the
// hypervisors of other VMs from the VM controller ([Endpoint.Follow]). WireGuard encrypts all packets, and accepts
// those of a hypervisor only with the addresses of its VM. The rules for packets, and the responses to a guest that
// looks for its neighbors, are those of package network, whose Switch does the same for guests of one host.
//
// A hypervisor knows all VMs of its network, but has a WireGuard peer only for those with which its guest has
// communicated in the last minutes. Others cost one entry in a table.
package overlay

import (
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.zx2c4.com/wireguard/device"

	"github.com/millwright-dev/millwright/internal/vm/network"
)

// Key is the X25519 public key of a hypervisor.
type Key [32]byte

// Config configures an Endpoint.
type Config struct {
	// Listen is the address of this process at which other hypervisors reach it. It must not be unspecified. If the
	// port is 0, any free port is used. Required.
	Listen netip.AddrPort
	// MTU is the length of the longest packet between guests, in bytes, from network.MinMTU to MaxMTU. Longer packets
	// are fragmented, or cause an error that reports the MTU to the guest. If 0, it is derived from the network interface with the address;
	// see DefaultMTU.
	MTU int
	// Log is the logger. If nil, nothing is logged.
	Log *slog.Logger
}

// MaxMTU is the MTU of a guest's link, in bytes.
const MaxMTU = 1500

// overhead is the number of bytes that WireGuard adds to a packet, with UDP over IPv6.
const overhead = 80

// Endpoint is the network of one guest. Create it with New. It is safe for concurrent use.
type Endpoint struct {
	config    Config
	public    Key
	address   netip.AddrPort
	macs      device.CookieChecker
	wireguard *device.Device
	tunnel    *tunnel
	refused   *network.Refusals

	// configuring serializes changes of the peers of the device. When WireGuard removes a peer, it waits until its
	// packets have been handled, so mu must not be held meanwhile.
	configuring sync.Mutex
	peers       map[Key]*member // those that the device has
	pruning     *time.Timer     // nil while the device has no peers
	silent      []string        // the VMs of the last call of checkSilent

	// silentChanged receives a value when the result of Silent may have changed.
	silentChanged chan struct{}

	mu    sync.RWMutex
	table table
	guest *guest // nil while no guest is attached
	// missed has the senders of handshakes that are not in the table, with the time of the last one.
	missed map[netip.AddrPort]time.Time

	strangers atomic.Uint64
}

// New opens the UDP socket of an endpoint. The caller must close the endpoint.
func New(config Config) (*Endpoint, error) {
	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}
	if !config.Listen.Addr().IsValid() || config.Listen.Addr().IsUnspecified() {
		return nil, fmt.Errorf("the overlay cannot listen on %s: other hypervisors need an address", config.Listen)
	}
	var err error
	if config.MTU == 0 {
		if config.MTU, err = DefaultMTU(config.Listen.Addr()); err != nil {
			return nil, err
		}
	}
	if config.MTU < network.MinMTU || config.MTU > MaxMTU {
		return nil, fmt.Errorf("the overlay's MTU of %d is not between %d and %d", config.MTU, network.MinMTU, MaxMTU)
	}
	private, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generating the key of the overlay: %w", err)
	}
	e := &Endpoint{
		config: config, public: Key(private.PublicKey().Bytes()), refused: network.NewRefusals(config.Log),
		peers: map[Key]*member{}, silentChanged: make(chan struct{}, 1), table: newTable(), missed: map[netip.AddrPort]time.Time{},
	}
	e.macs.Init(device.NoisePublicKey(e.public))
	e.tunnel = newTunnel(e)
	socket := &bind{endpoint: e}
	e.wireguard = device.NewDevice(e.tunnel, socket, &device.Logger{Verbosef: e.observe, Errorf: func(format string, args ...any) {
		config.Log.Warn("the overlay failed", "error", fmt.Sprintf(format, args...))
	}})
	err = e.wireguard.IpcSet("private_key=" + hex.EncodeToString(private.Bytes()) + "\n")
	if err == nil {
		err = e.wireguard.Up()
	}
	if err != nil {
		e.wireguard.Close()
		return nil, fmt.Errorf("opening the overlay on %s: %w", config.Listen, err)
	}
	e.address = socket.local()
	return e, nil
}

// DefaultMTU returns the MTU of the overlay on the network interface with an address: packets fit into those of the
// interface, unless its MTU is very small. It is at most MaxMTU.
func DefaultMTU(address netip.Addr) (int, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return 0, fmt.Errorf("listing the network interfaces: %w", err)
	}
	for _, i := range interfaces {
		addresses, err := i.Addrs()
		if err != nil {
			return 0, fmt.Errorf("listing the addresses of %s: %w", i.Name, err)
		}
		for _, has := range addresses {
			if prefix, err := netip.ParsePrefix(has.String()); err == nil && prefix.Addr().Unmap() == address.Unmap() {
				return max(network.MinMTU, min(MaxMTU, i.MTU-overhead)), nil
			}
		}
	}
	return 0, fmt.Errorf("no network interface has the address %s", address)
}

// Key returns the public key of the endpoint.
func (e *Endpoint) Key() Key { return e.public }

// Address returns the UDP address of the endpoint.
func (e *Endpoint) Address() netip.AddrPort { return e.address }

// MTU returns the length of the longest packet between guests, in bytes.
func (e *Endpoint) MTU() int { return e.config.MTU }

// Close closes the socket and forgets all keys. The guest stays attached but reaches no other guests.
func (e *Endpoint) Close() {
	e.wireguard.Close()
	e.configuring.Lock()
	defer e.configuring.Unlock()
	if e.pruning != nil {
		e.pruning.Stop()
	}
}

// Refused returns the number of dropped packets since the start, by VM and reason. Packets that other hypervisors sent
// with addresses that they must not use are counted under Others.
func (e *Endpoint) Refused() map[string]map[network.Refusal]uint64 { return e.refused.All() }

// Others is the name under which Refused counts packets of other hypervisors.
const Others = "other hypervisors"

// Strangers returns the number of dropped datagrams that were not sent by a known hypervisor.
func (e *Endpoint) Strangers() uint64 { return e.strangers.Load() }

// observe counts packets of other hypervisors that WireGuard drops. It reports them only in its log.
func (e *Endpoint) observe(format string, _ ...any) {
	if strings.Contains(format, "disallowed source address") {
		e.refused.Count(Others, network.ForeignAddress)
	}
}

// Apply applies an update of the VM controller. When it returns, no packets are sent with revoked keys, or accepted.
func (e *Endpoint) Apply(update Update) {
	e.mu.Lock()
	gone, added := e.table.apply(update)
	greet := map[*member]bool{}
	for _, m := range added {
		late, known := e.missed[m.Endpoint]
		greet[m] = known && time.Since(late) < missedTime
		delete(e.missed, m.Endpoint)
	}
	e.mu.Unlock()
	inUse := map[string]bool{}
	for _, m := range gone {
		inUse[m.VM] = e.remove(m)
	}
	for _, m := range added {
		if greet[m] || inUse[m.VM] { // it has moved during a conversation
			e.greet(m)
		}
	}
	if len(gone) > 0 {
		e.configuring.Lock()
		defer e.configuring.Unlock()
		e.checkSilent()
	}
}

const (
	// missedTime is how long a handshake that came too early is remembered. The sender repeats it.
	missedTime = device.RekeyTimeout * 2
	// maxMissed is the maximum number of such handshakes.
	maxMissed = 256
)

// accept decides whether WireGuard handles a datagram. It adds the peer for a handshake of a known hypervisor.
func (e *Endpoint) accept(from netip.AddrPort, message []byte) bool {
	starts := isInitiation(message) && e.macs.CheckMAC1(message)
	e.mu.RLock()
	m := e.table.byEndpoint[from]
	e.mu.RUnlock()
	if m == nil {
		e.strangers.Add(1)
		if starts {
			e.miss(from)
		}
		return false
	}
	if isInitiation(message) && !(starts && e.configure(m)) {
		return false
	}
	m.heard(time.Now())
	return true
}

// miss records a handshake of a hypervisor that this process does not know yet.
func (e *Endpoint) miss(from netip.AddrPort) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.missed) >= maxMissed {
		clear(e.missed)
	}
	e.missed[from] = time.Now()
}

// Attach connects a guest until the context is canceled. It replaces an earlier guest. It returns the function that
// sends a frame of the guest, or responds to it if the guest looks for another guest on its own link. That function
// never blocks. Frames for the guest are delivered sequentially in QEMU's format, one or several in each call: a
// length of four bytes, followed by the content. If deliver fails, the guest is disconnected.
func (e *Endpoint) Attach(ctx context.Context, port network.Port, deliver func(framed []byte) error) (send func(frame []byte), err error) {
	if err := port.Check(); err != nil {
		return nil, err
	}
	g := newGuest(e, port)
	e.mu.Lock()
	e.guest = g
	e.mu.Unlock()
	go func() {
		if err := g.run(ctx, deliver); err != nil {
			e.config.Log.Warn("the guest does not accept frames of other guests", "error", err)
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.guest == g {
			e.guest = nil
		}
	}()
	return g.send, nil
}

// holder returns the VM with an address; nil if there is none.
func (e *Endpoint) holder(address netip.Addr) *member {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.table.byAddress[address]
}
