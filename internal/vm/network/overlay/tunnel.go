package overlay

import (
	"encoding/binary"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.zx2c4.com/wireguard/tun"
)

// batch is the maximum number of packets that WireGuard reads or writes in one call. Each needs 64 KiB of memory.
const batch = 16

// tunnel is the guest's side of WireGuard. It implements tun.Device.
type tunnel struct {
	endpoint *Endpoint
	outgoing chan []byte
	// sending and receiving limit the packets between both sides of WireGuard.
	sending, receiving window
	events             chan tun.Event
	closed             chan struct{}
	close              sync.Once
}

func newTunnel(e *Endpoint) *tunnel {
	return &tunnel{
		endpoint: e, outgoing: make(chan []byte, maxQueued), events: make(chan tun.Event), closed: make(chan struct{}),
		sending: newWindow(), receiving: newWindow(),
	}
}

// Read returns packets of the guest.
func (t *tunnel) Read(buffers [][]byte, sizes []int, offset int) (int, error) {
	t.sending.wait(t.closed)
	select {
	case packet := <-t.outgoing:
		sizes[0] = copy(buffers[0][offset:], packet)
	case <-t.closed:
		return 0, os.ErrClosed
	}
	n := 1
	for n < min(len(buffers), batch) {
		select {
		case packet := <-t.outgoing:
			sizes[n] = copy(buffers[n][offset:], packet)
			n++
			continue
		default:
		}
		break
	}
	t.sending.take(n)
	return n, nil
}

// Write delivers packets to the guest.
func (t *tunnel) Write(buffers [][]byte, offset int) (int, error) {
	for _, buffer := range buffers {
		t.endpoint.receive(buffer[offset:])
	}
	t.receiving.give(len(buffers))
	return len(buffers), nil
}

// Close implements tun.Device.
func (t *tunnel) Close() error {
	t.close.Do(func() {
		close(t.closed)
		close(t.events)
	})
	return nil
}

// File, MTU, Name, Events and BatchSize implement tun.Device.
func (t *tunnel) File() *os.File           { return nil }
func (t *tunnel) MTU() (int, error)        { return t.endpoint.config.MTU, nil }
func (t *tunnel) Name() (string, error)    { return "guest", nil }
func (t *tunnel) Events() <-chan tun.Event { return t.events }
func (t *tunnel) BatchSize() int           { return batch }

// sender returns the source address of an IP packet.
func sender(packet []byte) (netip.Addr, bool) {
	const length4, source4, length6, source6 = 20, 12, 40, 8
	switch {
	case len(packet) >= length4 && packet[0]>>4 == 4:
		return netip.AddrFrom4([4]byte(packet[source4:])), true
	case len(packet) >= length6 && packet[0]>>4 == 6:
		return netip.AddrFrom16([16]byte(packet[source6:])), true
	}
	return netip.Addr{}, false
}

// Types and sizes of WireGuard's messages, in bytes.
const (
	typeInitiation = 1
	typeTransport  = 4
	initiationSize = 148
	keepaliveSize  = 32
)

// isInitiation reports whether a message starts a handshake.
func isInitiation(message []byte) bool {
	return len(message) == initiationSize && binary.LittleEndian.Uint32(message) == typeInitiation
}

// hasPacket reports whether a message contains a packet.
func hasPacket(message []byte) bool {
	return len(message) > keepaliveSize && binary.LittleEndian.Uint32(message) == typeTransport
}

// window limits the packets that WireGuard encrypts or decrypts, because its queues are long: with the default, packets
// that arrive faster than they can be processed could take gigabytes of memory.
type window struct {
	taken *atomic.Int64
	given chan struct{}
}

const (
	// maxTaken is the maximum number of packets in a window before no more are taken.
	maxTaken = 256
	// lostTime is how long a full window waits. WireGuard also drops packets, for example those with invalid signatures,
	// and does not report it. They then count as lost.
	lostTime = 20 * time.Millisecond
)

func newWindow() window { return window{taken: new(atomic.Int64), given: make(chan struct{}, 1)} }

// wait waits until the window is not full.
func (w window) wait(closed <-chan struct{}) {
	if w.taken.Load() < maxTaken {
		return
	}
	lost := time.NewTimer(lostTime)
	defer lost.Stop()
	for w.taken.Load() >= maxTaken {
		select {
		case <-w.given:
		case <-lost.C:
			w.taken.Store(0)
		case <-closed:
			return
		}
	}
}

func (w window) take(n int) { w.taken.Add(int64(n)) }

// give returns packets to the window.
func (w window) give(n int) {
	if w.taken.Add(-int64(n)) < 0 {
		w.taken.Store(0) // packets that were considered lost
	}
	select {
	case w.given <- struct{}{}:
	default:
	}
}
