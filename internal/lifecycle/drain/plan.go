package drain

import (
	"fmt"
	"slices"
	"time"
)

// Times between two requests about one pod.
const (
	// evictionInterval follows a refusal, unless a budget allows the eviction before.
	evictionInterval = 20 * time.Second
	// budgetInterval follows a refusal in any case: the budget in the cache may be older.
	budgetInterval = time.Second
	// failureInterval follows an error.
	failureInterval = 5 * time.Second
	// forcedFor is how long forced deletions are tried again after errors.
	forcedFor = time.Minute
)

type operation struct {
	pod   pod
	force bool
	// reason is why it is forced.
	reason string
}

// plan brings the ledger up to date, and returns the requests to be made now.
func plan(f facts, r rules, l *ledger) []operation {
	l.observe(f, r)
	if r.force != NotForced {
		return planForced(f, r, l)
	}
	var ops []operation
	for _, p := range f.pods {
		if len(p.volumes) == 0 {
			if op, due := next(f, r, l.pods[p.uid]); due {
				ops = append(ops, op)
			}
		}
	}
	ops = append(ops, planVolumes(f, r, l)...)
	for _, op := range ops {
		p := l.pods[op.pod.uid]
		l.depart(p, f)
		p.calling = true
	}
	return ops
}

func planVolumes(f facts, r rules, l *ledger) []operation {
	var ops []operation
	var ahead []*progress
	for _, p := range l.pods {
		if p.holds() {
			ahead = append(ahead, p)
		}
	}
	for _, p := range f.pods {
		if len(p.volumes) == 0 {
			continue
		}
		pod := l.pods[p.uid]
		if mustWait(f, r.strategy, ahead, pod) {
			continue
		}
		if pod.sent.IsZero() && unidentified(f, l, p) {
			ahead = append(ahead, pod) // its turn comes within moments
			continue
		}
		if op, due := next(f, r, pod); due {
			ops, ahead = append(ops, op), append(ahead, pod)
		}
	}
	return ops
}

func mustWait(f facts, strategy Strategy, ahead []*progress, pod *progress) bool {
	if strategy == Serial {
		return len(ahead) > 0
	}
	return slices.ContainsFunc(ahead, func(other *progress) bool {
		return slices.ContainsFunc(other.volumes, func(name string) bool {
			return !f.volumes[name].multi && slices.Contains(pod.volumes, name)
		})
	})
}

func unidentified(f facts, l *ledger, p pod) bool {
	return slices.ContainsFunc(p.volumes, func(name string) bool {
		v := f.volumes[name]
		return v.pending && !v.multi && !l.shared[name]
	})
}

func next(f facts, r rules, p *progress) (operation, bool) {
	if p.calling || !p.sent.IsZero() || f.now.Before(p.nextTry(f)) {
		return operation{}, false
	}
	if b := f.budgets[p.uid]; b != nil && Misconfigured(b) {
		return operation{pod: p.pod}, true // it may be corrected; only the deadline ignores it
	}
	if p.counts() && !f.now.Before(p.counted.Add(evictionInterval)) {
		p.attempts++
		p.counted = f.now
	}
	if p.attempts > r.retries {
		return operation{pod: p.pod, force: true, reason: p.gaveUp()}, true
	}
	return operation{pod: p.pod}, true
}

func (p *progress) gaveUp() string {
	if p.failure != nil {
		return fmt.Sprintf("its eviction did not work %d time(s), the last one because of: %v", p.attempts, p.failure)
	}
	return fmt.Sprintf("its eviction was refused %d time(s)", p.attempts)
}

// counts reports whether the last answer counts as a retry. An error does for pods with volumes
// only, since they hold back others.
func (p *progress) counts() bool {
	return p.refused || p.failure != nil && len(p.volumes) > 0
}

func (p *progress) nextTry(f facts) time.Time {
	switch {
	case p.refused:
		if b := f.budgets[p.uid]; b == nil || Allows(b) {
			return p.last.Add(budgetInterval)
		}
		return p.last.Add(evictionInterval)
	case p.failure != nil && len(p.volumes) > 0:
		return p.last.Add(evictionInterval)
	case p.failure != nil:
		return p.last.Add(failureInterval)
	default:
		return time.Time{}
	}
}

// planForced deletes everything at once, and waits for nothing.
func planForced(f facts, r rules, l *ledger) []operation {
	if l.forced.IsZero() {
		l.forced = f.now
	}
	var ops []operation
	for _, fact := range f.pods {
		p := l.pods[fact.uid]
		if p.calling || p.ended() || l.givenUp(p, f.now) || l.tried(p) && f.now.Before(p.last.Add(failureInterval)) {
			continue
		}
		p.calling = true
		ops = append(ops, operation{pod: fact, force: true, reason: string(r.force)})
	}
	return ops
}

func (p *progress) ended() bool { return p.killed || p.removed }

// tried reports whether a forced deletion has failed.
func (l *ledger) tried(p *progress) bool { return p.failure != nil && !p.last.Before(l.forced) }

// givenUp reports whether forced deletions have failed for forcedFor.
func (l *ledger) givenUp(p *progress, now time.Time) bool {
	return l.tried(p) && !now.Before(l.forced.Add(forcedFor))
}
