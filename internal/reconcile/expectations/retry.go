package expectations

import "time"

const (
	// firstRetry and longestRetry bound the time between two attempts.
	firstRetry   = time.Second
	longestRetry = 5 * time.Minute
)

// Retry spaces attempts out that fail with an effect of their own, such as an object that was made and is
// deleted again: the events of that effect would start the next attempt at once, whatever the queue's rate
// limiter says. The zero value allows an attempt. Losing it costs one attempt.
type Retry struct {
	failure    error
	generation int64
	rounds     int
	next       time.Time
}

// Failed notes a failure for a generation of the object.
func (r *Retry) Failed(failure error, generation int64, now time.Time) {
	if r.generation != generation {
		*r = Retry{generation: generation}
	}
	r.failure, r.next = failure, now.Add(min(firstRetry<<min(r.rounds, 20), longestRetry))
	r.rounds++
}

// Waits returns the last failure while it is too early for another attempt. A new generation of the object may
// be tried at once.
func (r *Retry) Waits(generation int64, now time.Time) error {
	if r.generation != generation || !now.Before(r.next) {
		return nil
	}
	return r.failure
}

// Failing reports whether the last attempt failed.
func (r *Retry) Failing() bool { return r.failure != nil }

// Succeeded forgets all failures.
func (r *Retry) Succeeded() { *r = Retry{} }
