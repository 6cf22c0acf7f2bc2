package virtualmachine

import (
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"
)

// leadership records when this process started and when it became the leader.
type leadership struct {
	clock clock.PassiveClock
	// startedAt is when this process started to watch. It grants no leases before it is the leader.
	startedAt time.Time
	// since is when this process became the leader; nil until then.
	since atomic.Pointer[time.Time]
}

// begin records that this process has become the leader.
func (l *leadership) begin() {
	now := l.clock.Now()
	l.since.Store(&now)
}

// electionDelay is the time that hypervisors have to open their run leases after this process has become the leader.
// Before it has passed, no hypervisor without a run lease is elected, and none is treated as fenced.
const electionDelay = 30 * time.Second

// settling returns how much of electionDelay remains. While it is positive, a hypervisor that is alive may not have
// opened its run lease yet. The result may be negative.
func (l *leadership) settling() time.Duration {
	since := l.startedAt
	if led := l.since.Load(); led != nil {
		since = *led
	}
	return electionDelay - l.clock.Now().Sub(since)
}
