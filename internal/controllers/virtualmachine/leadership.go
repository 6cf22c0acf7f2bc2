package virtualmachine

import (
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"
)

// leadership is since when this process watches, and since when it leads.
type leadership struct {
	clock clock.PassiveClock
	// startedAt is when this process started to watch. Until it is the leader, it grants no leases.
	startedAt time.Time
	// since is when this process became the leader; nil before.
	since atomic.Pointer[time.Time]
}

// begin notes that this process is the leader from now on.
func (l *leadership) begin() {
	now := l.clock.Now()
	l.since.Store(&now)
}

// electionDelay is how long hypervisors have to open their run leases after this process became the leader. Only then
// is one of several without a lease elected, or does one count as fenced.
const electionDelay = 30 * time.Second

// settling returns for how long hypervisors that are alive may still be without a run lease, after this process
// became the leader. It is not positive when they no longer may.
func (l *leadership) settling() time.Duration {
	since := l.startedAt
	if led := l.since.Load(); led != nil {
		since = *led
	}
	return electionDelay - l.clock.Now().Sub(since)
}
