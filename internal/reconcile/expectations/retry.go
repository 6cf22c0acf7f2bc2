package expectations

import "time"

const (
	// firstRetry and longestRetry are the limits of the time between two attempts.
	firstRetry   = time.Second
	longestRetry = 5 * time.Minute
)

// Retry delays attempts whose failures trigger events themselves, such as an object that is created and deleted
// again. Those events would start the next attempt immediately, regardless of the queue's rate limiter. The
// zero value allows an attempt. Losing the state costs one attempt.
type Retry struct {
	failure    error
	generation int64
	rounds     int
	next       time.Time
}

// Failed records a failure for a generation of the object.
func (r *Retry) Failed(failure error, generation int64, now time.Time) {
	if r.generation != generation {
		*r = Retry{generation: generation}
	}
	r.failure, r.next = failure, now.Add(min(firstRetry<<min(r.rounds, 20), longestRetry))
	r.rounds++
}

// Waits returns the last failure while it is too early for another attempt, and nil otherwise. A new generation
// of the object may be tried immediately.
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
