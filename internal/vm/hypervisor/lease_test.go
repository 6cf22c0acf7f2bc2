package hypervisor_test

import (
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor"
	"github.com/millwright-dev/millwright/internal/vm/lease"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// fakeWatchdog is a watchdog that does not kill anything.
type fakeWatchdog struct {
	mu     sync.Mutex
	until  lease.Instant
	sets   int
	lost   chan struct{}
	closed bool
}

func (d *fakeWatchdog) Until(kill lease.Instant) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.until = kill
	d.sets++
	return nil
}

func (d *fakeWatchdog) Lost() <-chan struct{} { return d.lost }

func (d *fakeWatchdog) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
}

// leaseFor responds with a lease of the given duration.
func leaseFor(duration time.Duration) *vmpb.RunLeaseUpdate {
	return &vmpb.RunLeaseUpdate{Status: vmpb.RunLeaseUpdate_STATUS_OK, ValidFor: durationpb.New(duration)}
}

// withExpiringLease runs a test of a VM with leases of one minute.
func withExpiringLease(t *testing.T, run func(w *fixture, d *fakeWatchdog)) {
	withFixture(t, func(w *fixture) {
		d, begin := &fakeWatchdog{lost: make(chan struct{})}, time.Now()
		w.config.Spec.LeaseMode, w.config.Spec.LeaseDuration = vmpb.LeaseMode_LM_FULL_LEASES, durationpb.New(time.Minute)
		w.config.Watchdog = func() (hypervisor.Watchdog, error) { return d, nil }
		w.config.Clock = func() lease.Instant { return time.Since(begin) }
		w.controller.Respond(leaseFor(time.Minute))
		run(w, d)
	})
}

// A lease is renewed after a third of its duration by a stream that replaces the previous one, and the watchdog
// knows when the lease expires.
func TestLease_IsRenewed(t *testing.T) {
	withExpiringLease(t, func(w *fixture, d *fakeWatchdog) {
		p := w.start()
		reports := len(w.controller.Reports())
		pass(10*time.Minute + time.Second)
		p.wantAlive()
		if streams := len(w.controller.Runs()); streams != 31 {
			t.Errorf("got %d streams in ten minutes, want 31", streams)
		}
		if open, most := w.controller.Streams(); open != 1 || most > 2 {
			t.Errorf("%d streams are open, maximum %d, want 1 and 2", open, most)
		}
		if d.sets != 31 || d.until != 10*time.Minute+55*time.Second {
			t.Errorf("the watchdog was set %d times, the last time to %v", d.sets, d.until)
		}
		if news := w.controller.Reports()[reports:]; len(news) > 0 {
			t.Errorf("a renewal sent the report again: %v", news)
		}
	})
}

// A hypervisor that cannot reach its controller stops the guest before its lease expires, and reports that.
func TestLease_ExpiryStopsGuest(t *testing.T) {
	withExpiringLease(t, func(w *fixture, d *fakeWatchdog) {
		p := w.start()
		w.controller.SetAway(true)
		pass(49 * time.Second)
		p.wantAlive()
		machine := w.machines.Started()[0]
		pass(time.Second)
		if machine.Stops() != 1 {
			t.Errorf("the guest was stopped %d times, want 1", machine.Stops())
		}
		p.wantEnd(vmpb.EndLeaseExpired)
		if !d.closed {
			t.Error("the watchdog was not closed")
		}
	})
}

// A controller that is unavailable for a part of the lease causes no disruption. It receives the state when it is
// available again.
func TestLease_OutlastsControllerFailOver(t *testing.T) {
	withExpiringLease(t, func(w *fixture, _ *fakeWatchdog) {
		p := w.start()
		before := len(w.controller.Reports())
		for range 5 {
			w.controller.SetAway(true)
			pass(20 * time.Second)
			w.controller.SetAway(false)
			pass(25 * time.Second)
		}
		p.wantAlive()
		if reports := len(w.controller.Reports()) - before; reports != 5 {
			t.Errorf("got %d reports, want 5", reports)
		}
	})
}

// Further updates of a stream do not extend the lease.
func TestLease_StreamUpdatesDoNotExtend(t *testing.T) {
	withExpiringLease(t, func(w *fixture, _ *fakeWatchdog) {
		p := w.start()
		begin := time.Now()
		pass(19 * time.Second)
		response := leaseFor(time.Minute)
		response.Paused = true
		w.controller.Respond(response)
		pass(100 * time.Millisecond)
		if status := w.machines.Started()[0].Status(); status != paused {
			t.Errorf("the guest is %s, want %s", status, paused)
		}
		w.controller.SetAway(true)
		p.wantEnd(vmpb.EndLeaseExpired)
		if lived := time.Since(begin); lived > 53*time.Second {
			t.Errorf("the hypervisor terminated after %v", lived)
		}
	})
}

// The guest does not start without a lease, however long that takes. A response without a duration is not a lease.
func TestLease_GuestDoesNotStartWithout(t *testing.T) {
	for name, response := range map[string]*vmpb.RunLeaseUpdate{"no response": nil, "no duration": leaseOK()} {
		t.Run(name, func(t *testing.T) {
			withExpiringLease(t, func(w *fixture, _ *fakeWatchdog) {
				w.controller.Respond(response)
				p := w.start()
				pass(10 * time.Minute)
				p.wantAlive()
				if started := len(w.machines.Started()); started != 0 {
					t.Errorf("started %d machines", started)
				}
				w.controller.Respond(leaseFor(time.Minute))
				pass(30 * time.Second)
				if started := len(w.machines.Started()); started != 1 {
					t.Errorf("started %d machines with a lease, want 1", started)
				}
			})
		})
	}
}

// A hypervisor that terminates releases the lease after the guest has terminated.
func TestLease_IsReleasedAfterGuest(t *testing.T) {
	for name, test := range map[string]struct {
		end  func(w *fixture, p *process)
		want string
	}{
		"shut down":  {func(_ *fixture, p *process) { p.term() }, vmpb.EndStopped},
		"terminated": {func(w *fixture, _ *process) { w.controller.Respond(leaseTerminated()) }, vmpb.EndTerminated},
	} {
		t.Run(name, func(t *testing.T) {
			withExpiringLease(t, func(w *fixture, d *fakeWatchdog) {
				p := w.start()
				test.end(w, p)
				p.wantEnd(test.want)
				if released := w.controller.Released(); len(released) != 1 || released[0].GetRunId() != w.controller.Runs()[0].GetRunId() {
					t.Errorf("released: %v", released)
				}
				if !d.closed {
					t.Error("the watchdog was not closed")
				}
			})
		})
	}
}

// Without a watchdog, nothing protects against a process that hangs. The guest therefore terminates with the
// watchdog.
func TestWatchdog_LossTerminatesGuest(t *testing.T) {
	withExpiringLease(t, func(w *fixture, d *fakeWatchdog) {
		p := w.start()
		close(d.lost)
		p.wantEnd(vmpb.EndLeaseExpired)
	})
}

func TestLease_NeedsWatchdog(t *testing.T) {
	withExpiringLease(t, func(w *fixture, _ *fakeWatchdog) {
		w.config.Watchdog = nil
		w.start().wantEnd(vmpb.EndInvalidSpec)
	})
}
