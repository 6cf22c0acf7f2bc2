package virtualmachine

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// How long to wait after a hypervisor that ended: firstDelay after the first one, twice
// as long after each other one, lastDelay at the most, and at once if trying again
// cannot help. A hypervisor that lasted for steady is counted as the first one.
const (
	firstDelay = time.Second
	lastDelay  = time.Minute
	steady     = 5 * time.Minute
)

// attempts counts, in memory only, how often a VM's hypervisors ended. Losing it makes
// the next wait shorter.
type attempts struct {
	mu sync.Mutex
	of map[types.NamespacedName]*tries
}

type tries struct {
	attempt
	count int
	// began is when the last hypervisor was asked for; zero if that was before this
	// process.
	began time.Time
	// next is when there may be another.
	next time.Time
}

// attempt is a hypervisor that ended.
type attempt struct {
	// pod is where it ran.
	pod types.UID
	// generation is that of the spec now. A change starts the counting over.
	generation int64
	// permanent says that the same spec will end the same way.
	permanent bool
}

func newAttempts() *attempts { return &attempts{of: map[types.NamespacedName]*tries{}} }

// wait is how long to wait still, after a hypervisor that ended.
func (a *attempts) wait(vm types.NamespacedName, ended attempt, now time.Time) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	seen := a.of[vm]
	if seen == nil {
		seen = &tries{attempt: attempt{generation: ended.generation}}
		a.of[vm] = seen
	}
	switch {
	case seen.generation != ended.generation && seen.pod == ended.pod:
		seen.count, seen.next = 0, now // the user changed something: try that
	case seen.pod != ended.pod:
		if seen.generation != ended.generation || !seen.began.IsZero() && now.Sub(seen.began) >= steady {
			seen.count = 0
		}
		seen.next = now.Add(delay(seen.count, ended.permanent))
		seen.count++
	}
	seen.attempt = ended
	return seen.next.Sub(now)
}

// delay is how long to wait after count others.
func delay(count int, permanent bool) time.Duration {
	if permanent || count > 6 {
		return lastDelay
	}
	return min(firstDelay<<count, lastDelay)
}

// begin notes that a hypervisor was asked for.
func (a *attempts) begin(vm types.NamespacedName, generation int64, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.of[vm] == nil {
		a.of[vm] = &tries{attempt: attempt{generation: generation}}
	}
	a.of[vm].began = now
}

func (a *attempts) forget(vm types.NamespacedName) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.of, vm)
}
