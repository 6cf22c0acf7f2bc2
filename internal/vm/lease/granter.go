package lease

import "time"

// State is the state of a stored lease.
type State string

// States of a stored lease. In all states except Open the lease is barred: it is not granted.
const (
	// Open means that the holder gets the lease when it asks for it.
	Open State = "Open"
	// Suspected means that the holder did not renew the lease. If it asks again, the lease becomes open.
	Suspected State = "Suspected"
	// Revoked means that the holder never gets the lease again.
	Revoked State = "Revoked"
	// Released means that the holder has reported that its guest has terminated.
	Released State = "Released"
)

// Record is what is stored of a lease, in addition to its holder. Record and holder are changed together, only by
// compare-and-swap.
type Record struct {
	State State
	// Transitions grows with each change of the record or of the holder. It distinguishes two periods in which the
	// lease is barred.
	Transitions int64
	// Duration is the duration of the holder's leases.
	Duration time.Duration
}

// Next returns the record in another state.
func (r Record) Next(state State) Record {
	r.State = state
	r.Transitions++
	return r
}

// Verdict is the response to a holder's request.
type Verdict string

// Verdicts.
const (
	// Grant grants the lease.
	Grant Verdict = "grant"
	// Reopen requires that the record is opened first, and then asked again.
	Reopen Verdict = "reopen"
	// Refuse refuses the lease forever.
	Refuse Verdict = "refuse"
)

// Ask returns the verdict on a request of the holder. The record must have been read after the request was received.
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

// Watch is what a controller remembers of a record. It is lost with the process; a new controller then waits again.
type Watch struct {
	known       bool
	transitions int64
	since       Instant
}

// See notes when the record was first seen in its current form. Call it after reading or writing the record.
func (w *Watch) See(record Record, now Instant) {
	if !w.known || w.transitions != record.Transitions {
		*w = Watch{known: true, transitions: record.Transitions, since: now}
	}
}

// Facts are the basis of a controller's decision.
type Facts struct {
	Record Record
	// Gone reports whether the holder's Pod has terminated, as far as is known. It may be wrong.
	Gone bool
	// Heard is when the holder was last granted a lease, or could have been granted its first one. It may be too
	// early.
	Heard Instant
	// Now is the time.
	Now Instant
}

// Step is what a controller does with a lease.
type Step string

// Steps of a controller.
const (
	// Stay does nothing for now.
	Stay Step = "stay"
	// Suspect stores the state Suspected.
	Suspect Step = "suspect"
	// Revoke stores the state Revoked.
	Revoke Step = "revoke"
	// HandOn means that the lease has expired: another hypervisor may become the holder.
	HandOn Step = "hand-on"
)

// Next returns what to do, and after which time that may change without an event. 0 means that it does not.
func (w *Watch) Next(f Facts) (step Step, after time.Duration) {
	w.See(f.Record, f.Now)
	if f.Record.State == Open {
		if f.Gone {
			return Revoke, 0
		}
		return rest(Suspect, f.Heard+Silence(f.Record.Duration)-f.Now)
	}
	if f.Record.State == Released && f.Gone {
		return HandOn, 0
	}
	return rest(HandOn, w.since+Wait(f.Record.Duration)-f.Now)
}

// rest returns a step once its time has come.
func rest(step Step, left time.Duration) (Step, time.Duration) {
	if left > 0 {
		return Stay, left
	}
	return step, 0
}
