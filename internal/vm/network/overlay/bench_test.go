package overlay

import (
	"context"
	"log/slog"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millwright-dev/millwright/internal/vm/network"
)

// frames sends b.N packets of 1,400 bytes, of which at most 128 are on the way, and reports the throughput. Lost packets
// are sent again.
func frames(b *testing.B, from, to *host, received *atomic.Int64) {
	b.Helper()
	frame := from.frame(packet(from.port.IPv4, to.port.IPv4, 1, 1372))
	b.SetBytes(1400)
	b.ResetTimer()
	sent, last, changed := int64(0), int64(0), time.Now()
	for received.Load() < int64(b.N) {
		if now := received.Load(); now != last {
			last, changed = now, time.Now()
		} else if time.Since(changed) > 100*time.Millisecond {
			sent, changed = now, time.Now()
		}
		if sent-last >= 128 {
			runtime.Gosched()
			continue
		}
		from.send(append([]byte(nil), frame...))
		sent++
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "packets/s")
}

// roundTrips measures the time until a response arrives.
func roundTrips(b *testing.B, from, to *host) {
	b.Helper()
	for b.Loop() {
		from.sendsTo(to, 1)
		to.receives(b)
		to.sendsTo(from, 2)
		from.receives(b)
	}
}

// counting replaces the function that delivers packets by one that counts them.
func counting(b *testing.B, h *host) *atomic.Int64 {
	b.Helper()
	received := new(atomic.Int64)
	if _, err := h.Attach(b.Context(), h.port, func(framed []byte) error {
		received.Add(int64(len(framed)) / (4 + 14 + 1400))
		return nil
	}); err != nil {
		b.Fatal(err)
	}
	return received
}

func BenchmarkOverlay_Throughput(b *testing.B) {
	all := hosts(b, MaxMTU, 2)
	all[0].sendsTo(all[1], 1)
	all[1].receives(b)
	frames(b, all[0], all[1], counting(b, all[1]))
}

func BenchmarkOverlay_RoundTrip(b *testing.B) {
	all := hosts(b, MaxMTU, 2)
	roundTrips(b, all[0], all[1])
}

// switched returns two guests of a switch.
func switched(b *testing.B, received *atomic.Int64) [2]*host {
	b.Helper()
	socket := filepath.Join(b.TempDir(), "switch")
	listener, err := network.Listen(socket)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	b.Cleanup(cancel)
	log := slog.New(slog.DiscardHandler)
	go func() { _ = network.NewSwitch(log).Serve(ctx, listener) }()
	var guests [2]*host
	for i := range guests {
		h := &host{port: portOf(byte(10 + i)), got: make(chan []byte, 512)}
		link, err := network.Join(ctx, socket, h.port, func(framed []byte) error {
			received.Add(1)
			select {
			case h.got <- framed[4+14:]:
			default:
			}
			return nil
		}, log)
		if err != nil {
			b.Fatal(err)
		}
		h.send = link.Send
		guests[i] = h
	}
	for i := range guests { // until both are connected
		for received.Store(0); received.Load() == 0; time.Sleep(time.Millisecond) {
			guests[i].sendsTo(guests[1-i], 1)
		}
	}
	for i := range guests {
		for len(guests[i].got) > 0 {
			<-guests[i].got
		}
	}
	return guests
}

func BenchmarkSwitch_Throughput(b *testing.B) {
	received := new(atomic.Int64)
	guests := switched(b, received)
	received.Store(0)
	frames(b, guests[0], guests[1], received)
}

func BenchmarkSwitch_RoundTrip(b *testing.B) {
	guests := switched(b, new(atomic.Int64))
	roundTrips(b, guests[0], guests[1])
}

// BenchmarkOverlay_IdlePeers reports the memory of peers after a conversation, and of VMs without one.
func BenchmarkOverlay_IdlePeers(b *testing.B) {
	const count = 200
	all := hosts(b, MaxMTU, 1)
	a := all[0]
	heap := func() float64 {
		runtime.GC()
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return float64(stats.HeapAlloc + stats.StackInuse)
	}
	for b.Loop() {
		others := members(count)
		start := heap()
		a.Apply(Update{Snapshot: true, Present: others})
		known := heap()
		for _, m := range others {
			holder := a.holder(m.Addresses[0])
			holder.heard(time.Now()) // otherwise it counts as silent
			a.configure(holder)
		}
		configured := heap()
		b.ReportMetric((known-start)/count, "B/VM")
		b.ReportMetric((configured-known)/count, "B/peer")
	}
}
