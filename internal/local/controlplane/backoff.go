package controlplane

import "time"

const (
	firstDelay = time.Second
	longDelay  = 30 * time.Second
	// longUptime is how long a child must have been up for its end to count as
	// the first one.
	longUptime = time.Minute
)

// backoff counts how long to wait before a child that ended is started again.
// The zero value is ready for use.
type backoff struct{ next time.Duration }

// after returns the delay after a child that was up for the given time.
func (b *backoff) after(uptime time.Duration) time.Duration {
	if b.next == 0 || uptime >= longUptime {
		b.next = firstDelay
	}
	delay := b.next
	b.next = min(2*b.next, longDelay)
	return delay
}
