package virtualmachine

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// firstDelay and maxDelay bound the time between the end of one hypervisor and the start of the next.
	firstDelay = time.Second
	maxDelay   = time.Minute
	// steadyRun is how long a hypervisor must run before its end resets the back-off.
	steadyRun = 5 * time.Minute
)

// backoff delays the next hypervisor of a VM after one has terminated. The zero value is ready to use. If the state
// is lost, the next delay is shorter than it should be.
type backoff struct {
	last      attempt      // the last hypervisor that terminated
	delays    wait.Backoff // the delays that follow
	startedAt time.Time    // when the last Pod was reserved; zero if that was before this process
	next      time.Time    // when the next hypervisor may start
}

// attempt is a hypervisor that terminated.
type attempt struct {
	pod        types.UID
	generation int64 // current generation of the VM; a new one resets the back-off
	permanent  bool  // a hypervisor with the same spec would fail in the same way, so the next one waits for maxDelay
	requested  bool  // the user requested a restart or a new disk
}

// wait returns how long the next hypervisor must wait after the given one has terminated.
func (b *backoff) wait(ended attempt, now time.Time) time.Duration {
	changed := b.last.generation != ended.generation || ended.requested
	switch {
	case changed && b.last.pod == ended.pod:
		b.delays, b.next = wait.Backoff{}, now // the change may fix the problem
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
