package lease

import "time"

// State is the state of a stored lease.
type State string

// States of a stored lease. In every state except Open the lease is barred, which means that it is not granted.
const (
	// Open means that the holder receives the lease when it asks for it.
	Open State = "Open"
	// Suspected means that the holder did not renew the lease. If it asks again, the lease becomes open.
	Suspected State = "Suspected"
	// Revoked means that the holder never receives the lease again.
	Revoked State = "Revoked"
	// Released means that the holder has reported that its guest has terminated.
	Released State = "Released"
)

// Record is the stored state of a lease. It is stored together with the holder, and both are changed only by
// compare-and-swap.
type Record struct {
	State State
	// Transitions increases with each change of the record or of the holder. It distinguishes separate periods in
	// which the lease is barred.
	Transitions int64
	// Duration is the duration of the holder's leases.
	Duration time.Duration
}

// Next returns the record after a transition to another state.
func (r Record) Next(state State) Record {
	r.State = state
	r.Transitions++
	return r
}

// Verdict is the decision on a holder's request.
type Verdict string

// The possible verdicts.
const (
	// Grant grants the lease.
	Grant Verdict = "grant"
	// Reopen requires the caller to store the state Open first and then to call Ask again.
	Reopen Verdict = "reopen"
	// Refuse refuses the lease forever.
	Refuse Verdict = "refuse"
)

// Ask returns the verdict on a request of the holder. Read the record after the request has arrived, not before.
func (r Record) Ask() Verdict {
	switch r.State {
	case Open:
		return Grant
	case Suspected:
		return Reopen
	default:
		return Refuse
	}
}

// Watch is what a controller process remembers about a record. It is not stored: a new process starts waiting
// again.
type Watch struct {
	known       bool
	transitions int64
	since       Instant
}

// See records when this form of the record was first seen. Call it after reading or writing the record.
func (w *Watch) See(record Record, now Instant) {
	if !w.known || w.transitions != record.Transitions {
		*w = Watch{known: true, transitions: record.Transitions, since: now}
	}
}

// Facts are the basis of a controller's decision.
type Facts struct {
	Record Record
	// Gone reports whether the holder's Pod is known to have terminated. It may be wrong.
	Gone bool
	// Heard is when the holder was last granted a lease, or could have been granted its first one. It may be
	// earlier than the actual time.
	Heard Instant
	// Now is the time.
	Now Instant
}

// Step is what a controller does with a lease.
type Step string

// The steps of a controller.
const (
	// Stay does nothing for now.
	Stay Step = "stay"
	// Suspect stores the state Suspected.
	Suspect Step = "suspect"
	// Revoke stores the state Revoked.
	Revoke Step = "revoke"
	// HandOn means that the lease has expired and another hypervisor may become the holder.
	HandOn Step = "hand-on"
)

// Next returns what to do now, and after what time that may change without an event. If after is 0, it changes
// only by an event.
func (w *Watch) Next(f Facts) (step Step, after time.Duration) {
	w.See(f.Record, f.Now)
	if f.Record.State == Open {
		if f.Gone {
			return Revoke, 0
		}
		return stepAfter(Suspect, f.Heard+Silence(f.Record.Duration)-f.Now)
	}
	if f.Record.State == Released && f.Gone {
		return HandOn, 0
	}
	return stepAfter(HandOn, w.since+Wait(f.Record.Duration)-f.Now)
}

// stepAfter returns the step if the remaining time has passed, and Stay otherwise.
func stepAfter(step Step, left time.Duration) (Step, time.Duration) {
	if left > 0 {
		return Stay, left
	}
	return step, 0
}
