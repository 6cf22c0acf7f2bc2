package lease

import "time"

// State is that of a stored lease.
type State string

// States of a stored lease. All but Open are barred: no lease is granted.
const (
	// Open means that the holder gets the lease when it asks for it.
	Open State = "Open"
	// Suspected means that the holder was silent. If it asks, the lease is open again.
	Suspected State = "Suspected"
	// Revoked means that the holder gets no lease any more.
	Revoked State = "Revoked"
	// Released means that the holder has said that its guest has ended.
	Released State = "Released"
)

// Record is what is stored of a lease, beside who holds it. It is changed by compare-and-swap only, together
// with that.
type Record struct {
	State State
	// Transitions grows with each change of the record or of the holder, so that two times of
	// being barred are told apart.
	Transitions int64
	// Duration of the leases that the holder gets.
	Duration time.Duration
}

// Next returns the record in another state.
func (r Record) Next(state State) Record {
	r.State = state
	r.Transitions++
	return r
}

// Verdict is the answer to the holder's request.
type Verdict string

// Verdicts.
const (
	// Grant the lease.
	Grant Verdict = "grant"
	// Reopen the record, then ask it again.
	Reopen Verdict = "reopen"
	// Refuse it for ever.
	Refuse Verdict = "refuse"
)

// Ask returns the verdict about a request of the holder. The record must have been read after the request came.
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

// Watch is what a controller remembers of a record. It is lost with the process, which then waits again.
type Watch struct {
	known       bool
	transitions int64
	since       Instant
}

// See notes when a record was seen in this form first. Call it after the read or the write.
func (w *Watch) See(record Record, now Instant) {
	if !w.known || w.transitions != record.Transitions {
		*w = Watch{known: true, transitions: record.Transitions, since: now}
	}
}

// Facts are what a controller decides on.
type Facts struct {
	Record Record
	// Gone reports whether the holder's Pod has ended, as far as is known. It may be wrong.
	Gone bool
	// Heard is when the holder was granted a lease last, or could have been first. It may be too early.
	Heard Instant
	// Now is the time.
	Now Instant
}

// Step is what a controller does with a lease.
type Step string

// Steps.
const (
	// Stay does nothing for now.
	Stay Step = "stay"
	// Suspect stores the state Suspected.
	Suspect Step = "suspect"
	// Revoke stores the state Revoked.
	Revoke Step = "revoke"
	// HandOn means that the lease has ended: another hypervisor may become the holder.
	HandOn Step = "hand-on"
)

// Next returns what to do, and after which time that may be something else though nothing happens; 0: never.
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

// rest returns a step when its time has come.
func rest(step Step, left time.Duration) (Step, time.Duration) {
	if left > 0 {
		return Stay, left
	}
	return step, 0
}
