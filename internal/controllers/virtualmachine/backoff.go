package virtualmachine

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// firstDelay and maxDelay bound the time between two hypervisors.
	firstDelay = time.Second
	maxDelay   = time.Minute
	// steadyRun is how long a hypervisor must run to reset the back-off.
	steadyRun = 5 * time.Minute
)

// backoff delays the next hypervisor of a VM after one that terminated. The zero value is ready to use. If it is lost,
// the next delay is shorter.
type backoff struct {
	last      attempt      // the last one that terminated
	delays    wait.Backoff // the following delays
	startedAt time.Time    // when the last Pod was reserved; zero if that was before this process
	next      time.Time    // when there may be another hypervisor
}

// attempt is a hypervisor that terminated.
type attempt struct {
	pod        types.UID
	generation int64 // of the VM now; a new generation resets the back-off
	permanent  bool  // the next one of the same spec would fail in the same way, so it waits for maxDelay
	replaced   bool  // the user gave up its disk
}

// wait returns how long the next hypervisor must wait after one that terminated.
func (b *backoff) wait(ended attempt, now time.Time) time.Duration {
	changed := b.last.generation != ended.generation || ended.replaced
	switch {
	case changed && b.last.pod == ended.pod:
		b.delays, b.next = wait.Backoff{}, now // the change may help
	case b.last.pod != ended.pod:
		if changed || !b.startedAt.IsZero() && now.Sub(b.startedAt) >= steadyRun {
			b.delays = wait.Backoff{}
		}
		if b.delays.Duration == 0 {
			b.delays = wait.Backoff{Duration: firstDelay, Factor: 2, Cap: maxDelay, Steps: 10}
		}
		delay := b.delays.Step()
		if ended.permanent {
			delay = maxDelay
		}
		b.next = now.Add(delay)
	}
	b.last = ended
	return b.next.Sub(now)
}
