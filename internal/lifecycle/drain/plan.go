package drain

import (
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Intervals between requests about the same Pod.
const (
	// evictionInterval applies after a refusal, unless a budget allows the eviction earlier.
	evictionInterval = 20 * time.Second
	// budgetInterval applies after every refusal, because the budget in the cache may be out of date.
	budgetInterval = time.Second
	// failureInterval applies after an error.
	failureInterval = 5 * time.Second
	// forcedFor is how long failed forced deletions are retried.
	forcedFor = time.Minute
)

type operation struct {
	pod   pod
	force bool
	// reason is why the deletion is forced.
	reason string
}

// plan updates the drain's state and returns the requests to make now.
func plan(f facts, r rules, l *drainState) []operation {
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
		if p.last.IsZero() {
			l.recordReturn(op.pod, f.now)
		}
		l.depart(p, f)
		p.calling = true
	}
	return ops
}

func planVolumes(f facts, r rules, l *drainState) []operation {
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
			ahead = append(ahead, pod) // its volumes will be identified soon
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

func unidentified(f facts, l *drainState, p pod) bool {
	return slices.ContainsFunc(p.volumes, func(name string) bool {
		v := f.volumes[name]
		return v.pending && !v.multi && !l.shared[name]
	})
}

func next(f facts, r rules, p *progress) (operation, bool) {
	if p.calling || !p.sent.IsZero() || f.now.Before(later(p.notBefore, p.nextTry(f))) {
		return operation{}, false
	}
	if b := f.budgets[p.uid]; b != nil && Misconfigured(b) {
		return operation{pod: p.pod}, true // the budget may be corrected; only a forced drain ignores it
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
		return fmt.Sprintf("its eviction failed %d time(s), most recently with: %v", p.attempts, p.failure)
	}
	return fmt.Sprintf("its eviction was refused %d time(s)", p.attempts)
}

// counts reports whether the last response counts as a retry. An error counts only if the API server made a
// decision, and only for Pods with volumes, because those block others.
func (p *progress) counts() bool {
	return p.refused || len(p.volumes) > 0 && decided(p.failure)
}

// decided reports whether an error is the decision of a working API server.
func decided(err error) bool {
	switch apierrors.ReasonForError(err) {
	case metav1.StatusReasonUnknown, metav1.StatusReasonTimeout, metav1.StatusReasonServerTimeout,
		metav1.StatusReasonServiceUnavailable, metav1.StatusReasonTooManyRequests:
		return false
	default:
		return true
	}
}

// nextTry returns when the next eviction may start. The time is in the past if there was no request yet.
func (p *progress) nextTry(f facts) time.Time {
	switch {
	case p.refused:
		if b := f.budgets[p.uid]; b == nil || Allows(b) {
			return p.last.Add(budgetInterval)
		}
		return p.last.Add(evictionInterval)
	case len(p.volumes) > 0:
		return p.last.Add(evictionInterval)
	default:
		return p.last.Add(failureInterval)
	}
}

// planForced deletes all Pods immediately and does not wait.
func planForced(f facts, r rules, l *drainState) []operation {
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
func (l *drainState) tried(p *progress) bool { return p.failure != nil && !p.last.Before(l.forced) }

// givenUp reports whether forced deletions have been failing for forcedFor.
func (l *drainState) givenUp(p *progress, now time.Time) bool {
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

// drainState is the remembered state of a drain. Losing it only costs time.
type drainState struct {
	machine types.NamespacedName
	node    string
	// begun is when the drain began or, after a restart of the process, was continued. The node was cordoned.
	begun time.Time
	// there has the Pods that were on the node at the first pass. It is nil before that.
	there map[types.UID]bool
	// returns has the owners of evicted Pods that arrived later.
	returns map[string]returns
	// cordoned is a time at which the node was known to be cordoned.
	cordoned time.Time
	// unfilled is since when the cache could not be read. It is zero if it can be.
	unfilled time.Time
	// resumed is when the drain could begin because the cache was filled late. It is zero if it was filled soon.
	resumed time.Time
	pods    map[types.UID]*progress
	// shared has the volumes that several Pods of the node have used at the same time.
	shared map[string]bool
	// forced is when the first forced deletion was planned.
	forced time.Time
	// empty is the API server's result after the cache showed no more Pods.
	empty emptiness
	// indexed contains the names under which the indexes of the Drainer list this drain.
	indexed known
}

func newDrainState(node string, now time.Time) *drainState {
	return &drainState{node: node, begun: now, cordoned: now, pods: map[types.UID]*progress{}, shared: map[string]bool{}}
}

type progress struct {
	pod
	// calling reports that a request is in progress.
	calling bool
	// refused reports that a budget refused the last eviction. failure is any other error of the last request.
	refused bool
	failure error
	// notBefore is when the Pod may be evicted, if its owner brought it back.
	notBefore time.Time
	// last is when the last response arrived.
	last time.Time
	// counted is when the last retry was counted, and attempts is the number of retries.
	counted  time.Time
	attempts int

	// sent is when the Pod was evicted, or first seen to be terminating with all its volumes identified.
	sent time.Time
	// removed reports that the API server has accepted the forced deletion.
	removed bool
	awaited []awaited
	// detached is when all awaited volumes were detached from the node.
	detached time.Time
	// settled reports that the drain no longer waits for volumes of the Pod.
	settled bool
}

type awaited struct {
	volume, id string
	// was reports that the volume was attached when the Pod began to leave. If not, it need not be attached to
	// another node.
	was bool
}

func (l *drainState) known() known {
	k := known{refused: map[types.UID]bool{}}
	for uid, p := range l.pods {
		k.refused[uid] = p.refused
		if p.refused {
			k.namespaces = append(k.namespaces, p.key.Namespace)
		}
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

func (l *drainState) observe(f facts, r rules) {
	l.observeSharing(f)
	here := map[types.UID]bool{}
	for _, p := range f.pods {
		here[p.uid] = true
		known := l.pods[p.uid]
		if known == nil {
			known = &progress{}
			l.pods[p.uid] = known
			if l.arrived(p.uid, p.arrival) {
				known.notBefore = l.returns[p.owner].next()
			}
		}
		known.pod = p
		switch {
		case p.leaving && known.sent.IsZero() && !unidentified(f, l, p):
			l.depart(known, f)
			known.sent = f.now
		case !p.leaving && known.ineffective(f.now):
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

// ineffective reports whether an accepted request has had no effect for a long time. A conflict may have had
// another cause than a different Pod of the same name.
func (p *progress) ineffective(now time.Time) bool {
	return !p.calling && !p.sent.IsZero() && !now.Before(p.sent.Add(evictionInterval))
}

func (l *drainState) observeSharing(f facts) {
	users := map[string]int{}
	for _, p := range f.pods {
		for _, name := range p.volumes {
			if users[name]++; users[name] > 1 {
				l.shared[name] = true
			}
		}
	}
}

func (l *drainState) depart(p *progress, f facts) {
	p.awaited = nil
	for _, name := range p.volumes {
		if v := f.volumes[name]; v.id != "" && !v.multi && !l.shared[name] {
			p.awaited = append(p.awaited, awaited{volume: name, id: v.id, was: f.isAttached(v.id)})
		}
	}
}

// followVolumes records whether the volumes are detached from the node, and then whether they are attached to
// another node.
func (p *progress) followVolumes(f facts, r rules) {
	if p.sent.IsZero() || p.settled {
		return
	}
	if len(p.stillAttached(f)) > 0 {
		p.settled = !f.now.Before(p.detachBy(r))
		return
	}
	if p.detached.IsZero() {
		p.detached = f.now
	}
	p.settled = len(p.notReattached(f)) == 0 || !f.now.Before(p.reattachBy(r))
}

// stillAttached returns the awaited volumes that are attached to the node.
func (p *progress) stillAttached(f facts) []string {
	var names []string
	for _, a := range p.awaited {
		if f.isAttached(a.id) {
			names = append(names, a.volume)
		}
	}
	return names
}

// notReattached returns the awaited volumes that are not attached to another node yet. It returns none for a
// Pod without a controller, which is not replaced.
func (p *progress) notReattached(f facts) []string {
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

// terminationSlack is the time that a Pod gets in addition to its grace period.
const terminationSlack = 30 * time.Second

func (p *progress) terminationDeadline(r rules) time.Time {
	return p.sent.Add(min(p.grace, r.timeout) + terminationSlack)
}

// holds reports whether other Pods with volumes may have to wait for this one.
func (p *progress) holds() bool {
	leaves := p.leaving || !p.sent.IsZero()
	return len(p.volumes) > 0 && (p.calling || leaves && !p.settled)
}
