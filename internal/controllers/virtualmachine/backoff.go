package virtualmachine

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// firstDelay and maxDelay bound the time between the end of a hypervisor and the
	// next one.
	firstDelay = time.Second
	maxDelay   = time.Minute
	// steadyRun is how long a hypervisor has to last for the back-off to start again.
	steadyRun = 5 * time.Minute
)

// backoff spaces the hypervisors of a VM that end. The zero value is ready. Losing it
// makes the next delay shorter.
type backoff struct {
	// last is the hypervisor that ended last.
	last attempt
	// delays are those to come.
	delays wait.Backoff
	// startedAt is when the last hypervisor was asked for; zero if that was before this
	// process.
	startedAt time.Time
	// next is when there may be another hypervisor.
	next time.Time
}

// attempt is a hypervisor that ended.
type attempt struct {
	// pod is where it ran.
	pod types.UID
	// generation is that of the VM now. A new one starts the back-off again.
	generation int64
	// permanent means that the next one of the same spec will end in the same way: it
	// waits for maxDelay at once.
	permanent bool
}

// wait returns how long to wait for the next hypervisor after one that ended.
func (b *backoff) wait(ended attempt, now time.Time) time.Duration {
	changed := b.last.generation != ended.generation
	switch {
	case changed && b.last.pod == ended.pod:
		b.delays, b.next = wait.Backoff{}, now // the change may help
	case b.last.pod != ended.pod:
		if changed || !b.startedAt.IsZero() && now.Sub(b.startedAt) >= steadyRun {
			b.delays = wait.Backoff{}
		}
		delay := b.step()
		if ended.permanent {
			delay = maxDelay
		}
		b.next = now.Add(delay)
	}
	b.last = ended
	return b.next.Sub(now)
}

func (b *backoff) step() time.Duration {
	if b.delays.Duration == 0 {
		b.delays = wait.Backoff{Duration: firstDelay, Factor: 2, Cap: maxDelay, Steps: 10}
	}
	return b.delays.Step()
}

// started notes that a hypervisor was asked for.
func (b *backoff) started(now time.Time) { b.startedAt = now }
