package overlay

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/millwright-dev/millwright/internal/vm/network"
)

const (
	// maxQueued is the maximum number of packets that may be pending in each direction. Further packets are dropped.
	maxQueued = 512
	// maxResponses is the maximum number of pending responses of the network itself. Guests repeat their requests.
	maxResponses = 64
	// maxBatch is the number of bytes after which a delivery to a guest contains no further frame.
	maxBatch = 1 << 16
)

// guest is the guest of an endpoint.
type guest struct {
	endpoint *Endpoint
	port     network.Port
	// frames are for the guest: those of other guests, and responses of the network itself. A flood of the former does
	// not affect the latter.
	frames, responses chan []byte
}

func newGuest(e *Endpoint, port network.Port) *guest {
	return &guest{endpoint: e, port: port, frames: make(chan []byte, maxQueued), responses: make(chan []byte, maxResponses)}
}

// run delivers frames until the context is canceled or deliver fails.
func (g *guest) run(ctx context.Context, deliver func(framed []byte) error) error {
	var batch []byte
	for {
		batch = batch[:0]
		select {
		case frame := <-g.responses:
			batch = appendFrame(batch, frame)
		case frame := <-g.frames:
			batch = appendFrame(batch, frame)
		case <-ctx.Done():
			return nil
		}
		for more := true; more && len(batch) < maxBatch; {
			select {
			case frame := <-g.frames:
				batch = appendFrame(batch, frame)
			default:
				more = false
			}
		}
		if err := deliver(batch); err != nil {
			return err
		}
	}
}

func appendFrame(to, frame []byte) []byte {
	return append(binary.BigEndian.AppendUint32(to, uint32(len(frame))), frame...)
}

// respond delivers a response of the network itself, unless too many are pending. A nil response is ignored.
func (g *guest) respond(frame []byte) {
	if frame == nil {
		return
	}
	select {
	case g.responses <- frame:
	default:
	}
}

// send sends a frame of the guest.
func (g *guest) send(frame []byte) {
	response, local := g.port.Resolve(frame)
	g.respond(response)
	if local {
		return
	}
	to, refusal := g.port.Inspect(frame)
	if refusal == "" && to.IsValid() { // otherwise the guest only announces where it is, which the controller knows
		refusal = g.forward(frame, g.endpoint.holder(to))
	}
	if refusal != "" {
		g.endpoint.refused.Count(g.port.VM, refusal)
	}
}

// forward sends a packet to another VM, in fragments if necessary.
func (g *guest) forward(frame []byte, to *member) network.Refusal {
	if to == nil {
		return network.NoGuest
	}
	packets, response := g.port.Forward(frame, g.endpoint.config.MTU)
	g.respond(response)
	for _, packet := range packets {
		if refusal := g.endpoint.send(packet, to); refusal != "" {
			return refusal
		}
	}
	return ""
}

// send sends a packet to a VM.
func (e *Endpoint) send(packet []byte, to *member) network.Refusal {
	now := time.Now()
	// A hypervisor that does not respond must not make this one store the packets of its guest without a limit.
	silent := !to.responds(now)
	if !e.configure(to) || silent && to.pending.Load() >= maxPending {
		return network.Unreachable
	}
	select {
	case e.tunnel.outgoing <- packet:
	default:
		return network.QueueFull
	}
	to.use(now)
	if silent {
		to.pending.Add(1)
	}
	return ""
}

// receive delivers a packet whose sender WireGuard has verified.
func (e *Endpoint) receive(packet []byte) {
	source, ok := sender(packet)
	if !ok {
		e.refused.Count(Others, network.Malformed)
		return
	}
	e.mu.RLock()
	from, g := e.table.byAddress[source], e.guest
	e.mu.RUnlock()
	if from == nil || g == nil {
		return
	}
	from.use(time.Now())
	if refusal := g.admit(packet, network.Port{IPv4: source, IPv6: source}); refusal != "" {
		e.refused.Count(Others, refusal)
		return
	}
	select {
	case g.frames <- g.port.Frame(packet):
	default:
		e.refused.Count(from.VM, network.QueueFull)
	}
}

// admit returns why a packet of another host must not reach the guest. The other host has checked the same, but an
// attacker could have taken it over.
func (g *guest) admit(packet []byte, from network.Port) network.Refusal {
	to, refusal := from.InspectPacket(packet)
	if refusal == "" && to != g.port.IPv4 && to != g.port.IPv6 {
		return network.NoGuest
	}
	return refusal
}
