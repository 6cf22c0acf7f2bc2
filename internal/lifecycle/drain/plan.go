package drain

import (
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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
	if p.counted.Before(r.since) {
		p.attempts = 0
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
// only, since they hold back others, and if the API server could decide.
func (p *progress) counts() bool {
	return p.refused || len(p.volumes) > 0 && decided(p.failure)
}

// decided reports whether an error is the decision of an API server that works.
func decided(err error) bool {
	switch apierrors.ReasonForError(err) {
	case metav1.StatusReasonUnknown, metav1.StatusReasonTimeout, metav1.StatusReasonServerTimeout,
		metav1.StatusReasonServiceUnavailable, metav1.StatusReasonTooManyRequests:
		return false
	default:
		return true
	}
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

type rules struct {
	strategy         Strategy
	detach, reattach time.Duration
	timeout          time.Duration
	retries          int
	since            time.Time
	force            Force
}

// ledger is what is remembered of a drain. Losing it costs time only.
type ledger struct {
	node string
	// cordoned is a time when the node was cordoned.
	cordoned time.Time
	pods     map[types.UID]*progress
	// shared has the volumes that several pods of the node have used at the same time.
	shared map[string]bool
	// forced is when the first forced deletion was planned.
	forced time.Time
	// empty is what the API server said of the node when the cache showed no pods.
	empty emptiness
}

func newLedger(node string, now time.Time) *ledger {
	return &ledger{node: node, cordoned: now, pods: map[types.UID]*progress{}, shared: map[string]bool{}}
}

type progress struct {
	pod
	// calling reports that a request is under way.
	calling bool
	// refused reports that a budget refused the last eviction; failure is any other error of
	// the last request.
	refused bool
	failure error
	// last is when the last request was answered.
	last time.Time
	// counted is when a retry was last counted, attempts their number.
	counted  time.Time
	attempts int

	// sent is when the pod was evicted, or first seen to be leaving with volumes that are all identified.
	sent time.Time
	// removed reports that the API server has accepted the forced deletion.
	removed bool
	awaited []awaited
	// detached is when all awaited volumes were detached from the node.
	detached time.Time
	// settled reports that no volume of the pod is awaited any longer.
	settled bool
}

type awaited struct {
	volume, id string
	// was reports that it was attached when the pod began to leave: else it need not be
	// attached to another node.
	was bool
}

func (l *ledger) known() known {
	k := known{refused: map[types.UID]bool{}}
	for uid, p := range l.pods {
		k.refused[uid] = p.refused
		if !p.settled {
			for _, a := range p.awaited {
				k.volumes = append(k.volumes, a.volume)
			}
		}
	}
	slices.Sort(k.volumes)
	k.volumes = slices.Compact(k.volumes)
	return k
}

func (l *ledger) observe(f facts, r rules) {
	l.observeSharing(f)
	here := map[types.UID]bool{}
	for _, p := range f.pods {
		here[p.uid] = true
		known := l.pods[p.uid]
		if known == nil {
			known = &progress{}
			l.pods[p.uid] = known
		}
		known.pod = p
		switch {
		case p.leaving && known.sent.IsZero() && !unidentified(f, l, p):
			l.depart(known, f)
			known.sent = f.now
		case !p.leaving && known.unheard(f.now):
			*known = progress{pod: p}
		}
	}
	for uid, p := range l.pods {
		p.followVolumes(f, r)
		if !here[uid] && !p.calling && (p.sent.IsZero() || p.settled) {
			delete(l.pods, uid)
		}
	}
}

// unheard reports whether an accepted request has had no effect for long: a conflict may have
// meant something else than another pod of the same name.
func (p *progress) unheard(now time.Time) bool {
	return !p.calling && !p.sent.IsZero() && !now.Before(p.sent.Add(evictionInterval))
}

func (l *ledger) observeSharing(f facts) {
	users := map[string]int{}
	for _, p := range f.pods {
		for _, name := range p.volumes {
			if users[name]++; users[name] > 1 {
				l.shared[name] = true
			}
		}
	}
}

func (l *ledger) depart(p *progress, f facts) {
	p.awaited = nil
	for _, name := range p.volumes {
		if v := f.volumes[name]; v.id != "" && !v.multi && !l.shared[name] {
			p.awaited = append(p.awaited, awaited{volume: name, id: v.id, was: f.isAttached(v.id)})
		}
	}
}

// followVolumes notes whether the volumes are detached from the node, then whether they are
// attached to another.
func (p *progress) followVolumes(f facts, r rules) {
	if p.sent.IsZero() || p.settled {
		return
	}
	if len(p.stillHere(f)) > 0 {
		p.settled = !f.now.Before(p.detachBy(r))
		return
	}
	if p.detached.IsZero() {
		p.detached = f.now
	}
	p.settled = len(p.notBack(f)) == 0 || !f.now.Before(p.reattachBy(r))
}

// stillHere returns the awaited volumes that are attached to the node.
func (p *progress) stillHere(f facts) []string {
	var names []string
	for _, a := range p.awaited {
		if f.isAttached(a.id) {
			names = append(names, a.volume)
		}
	}
	return names
}

// notBack returns the awaited volumes that are not attached to another node yet: none for a pod
// without a controller, which is not replaced.
func (p *progress) notBack(f facts) []string {
	if !p.controlled {
		return nil
	}
	var names []string
	for _, a := range p.awaited {
		if a.was && !f.elsewhere[a.volume] {
			names = append(names, a.volume)
		}
	}
	return names
}

func (p *progress) detachBy(r rules) time.Time {
	return later(p.sent, r.since).Add(p.grace + r.detach)
}

func (p *progress) reattachBy(r rules) time.Time { return later(p.detached, r.since).Add(r.reattach) }

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// goneSlack is what a pod gets beyond its grace period.
const goneSlack = 30 * time.Second

func (p *progress) goneBy(r rules) time.Time {
	return p.sent.Add(min(p.grace, r.timeout) + goneSlack)
}

// holds reports whether other pods with volumes may have to wait for this one.
func (p *progress) holds() bool {
	leaves := p.leaving || !p.sent.IsZero()
	return len(p.volumes) > 0 && (p.calling || leaves && !p.settled)
}
