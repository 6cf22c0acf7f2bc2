// Package lease decides who may run a VM by leases that expire.
//
// A [Holder] is the hypervisor's side, [Record] and [Watch] are the VM controller's. All are pure:
// time and events go in, decisions come out. What they guarantee together, if the record is changed by
// compare-and-swap only: never do two hypervisors run the VM, whatever messages are lost, doubled, delayed
// or reordered, whoever is paused or ends when, and whichever controllers answer; and if the holder is gone
// for good, another one gets the lease.
//
// Three facts carry this. The holder counts from when it sent its request. The controller reads the record after
// it has got the request, and grants nothing once the record is barred. It counts from when the record was seen to
// be barred, which was after the read of each request that it granted.
package lease

import (
	"fmt"
	"time"
)

// Instant is a time on the clock of one party: the time since a moment of its choice. The clock never goes
// back, and also runs while the machine sleeps.
type Instant = time.Duration

const (
	// MinDuration is the shortest lease. A renewal has two seconds, and is tried again.
	MinDuration = 6 * time.Second
	// MaxDuration is the longest lease: what is waited for where nothing is known.
	MaxDuration = 10 * time.Minute
	// DefaultDuration outlasts the fail-over of a controller.
	DefaultDuration = time.Minute

	// minMargin is the shortest margin.
	minMargin = time.Second
	// marginShare of the duration is the margin. So clocks may differ by five percent.
	marginShare = 20
)

// Check returns why a duration is refused, nil if it is not.
func Check(duration time.Duration) error {
	switch {
	case duration < MinDuration:
		return fmt.Errorf("a lease of %v is shorter than %v, which its renewal needs", duration, MinDuration)
	case duration > MaxDuration:
		return fmt.Errorf("a lease of %v is longer than %v", duration, MaxDuration)
	}
	return nil
}

// Lease is what a holder was granted.
type Lease struct {
	// Sent is when the request was sent, on the holder's clock.
	Sent Instant
	// Duration is how long it holds from then on.
	Duration time.Duration
}

// Renew is when to ask for the next one.
func (l Lease) Renew() Instant { return l.Sent + l.Duration/3 }

// Stop is when the holder begins to end the guest.
func (l Lease) Stop() Instant { return l.Sent + l.Duration - l.Duration/6 }

// Kill is when the guest is killed, also if the holder's process does nothing.
func (l Lease) Kill() Instant { return l.Sent + l.Duration - l.Duration/12 }

// End is when the lease expires. Nothing of the guest is left then.
func (l Lease) End() Instant { return l.Sent + l.Duration }

// Retry is how long one request for a lease may take, before another one is sent.
func Retry(duration time.Duration) time.Duration { return duration / 6 }

// Wait is how long the controller waits after it has seen that a lease is barred: it has
// expired then, also if the holder's clock is slower than the controller's.
func Wait(duration time.Duration) time.Duration {
	return duration + max(minMargin, duration/marginShare)
}

// Silence is how long the controller waits for a renewal until it bars the lease, which the holder can still undo.
func Silence(duration time.Duration) time.Duration { return duration - duration/3 }
