// Package lease decides which hypervisor may run a VM, using leases that expire.
//
// [Holder] is the hypervisor's side; [Record] and [Watch] are the VM controller's side. All of them are pure: they
// turn time and events into decisions.
//
// If the record is changed only by compare-and-swap, two hypervisors never run the VM at the same time, even if
// messages are lost, duplicated, delayed or reordered, processes are paused or terminated, and several controllers
// respond. Another hypervisor gets the lease once the holder has terminated for good.
//
// This is based on three facts. The lease starts, for the holder, when it sends its request. The controller reads
// the record after it has received the request, and does not grant a barred lease. The controller starts to wait
// when it has seen that the record is barred, which is after it has read the record for the last request that it
// granted.
package lease

import (
	"fmt"
	"time"
)

// Instant is a time on the clock of one party, measured from an arbitrary moment. The clock never goes back, and
// it keeps running while the host is suspended.
type Instant = time.Duration

const (
	// MinDuration is the shortest lease. It leaves two seconds for a renewal, including retries.
	MinDuration = 6 * time.Second
	// MaxDuration is the longest lease. The controller waits this long if it does not know the duration.
	MaxDuration = 10 * time.Minute
	// DefaultDuration is long enough for a controller to fail over.
	DefaultDuration = time.Minute

	// minMargin is the smallest margin.
	minMargin = time.Second
	// marginShare sets the margin to this fraction of the duration: clock rates may differ by five percent.
	marginShare = 20
)

// Check returns why a duration is invalid, or nil.
func Check(duration time.Duration) error {
	switch {
	case duration < MinDuration:
		return fmt.Errorf("lease duration %v is too short; the minimum is %v", duration, MinDuration)
	case duration > MaxDuration:
		return fmt.Errorf("lease duration %v is too long; the maximum is %v", duration, MaxDuration)
	}
	return nil
}

// Lease is a lease that was granted to a holder.
type Lease struct {
	// Sent is when the request was sent, on the holder's clock.
	Sent Instant
	// Duration is how long the lease is valid after Sent.
	Duration time.Duration
}

// Renew returns when to ask for the next lease.
func (l Lease) Renew() Instant { return l.Sent + l.Duration/3 }

// RenewalsPerSecond returns how often a lease of a duration is renewed, per second.
func RenewalsPerSecond(duration time.Duration) float64 {
	return 1 / Lease{Duration: duration}.Renew().Seconds()
}

// Stop returns when the holder begins to terminate the guest.
func (l Lease) Stop() Instant { return l.Sent + l.Duration - l.Duration/6 }

// Kill returns when the guest is killed, even if the holder's process hangs.
func (l Lease) Kill() Instant { return l.Sent + l.Duration - l.Duration/12 }

// End returns when the lease expires. No process of the guest runs by then.
func (l Lease) End() Instant { return l.Sent + l.Duration }

// Retry returns how long one request for a lease may take before another one is sent.
func Retry(duration time.Duration) time.Duration { return duration / 6 }

// Wait returns how long the controller waits after it has seen that a lease is barred. By then the lease has
// expired, even if the holder's clock is slower than the controller's.
func Wait(duration time.Duration) time.Duration {
	return duration + max(minMargin, duration/marginShare)
}

// Silence returns how long the controller waits for a renewal before it suspects the holder and bars the lease.
// The holder can still undo that by asking again.
func Silence(duration time.Duration) time.Duration { return duration - duration/3 }
