package drain

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// rules are what the options and the request say about one pass.
type rules struct {
	strategy         Strategy
	detach, reattach time.Duration
	timeout          time.Duration
	retries          int
	deadline         time.Time
	force            Force
}

// ledger is what is remembered of one drain. Losing it costs time only.
type ledger struct {
	node string
	pods map[types.UID]*progress
	// shared names the volumes that several pods of the node were seen to use. They stay
	// shared for the others when the first one has left.
	shared map[string]bool
	// overdue names the volumes that were not detached in time.
	overdue map[string]bool
	// forced is when pods were first deleted by force; zero if they were not.
	forced time.Time
}

func newLedger(node string) *ledger {
	return &ledger{node: node, pods: map[types.UID]*progress{}, shared: map[string]bool{}, overdue: map[string]bool{}}
}

// progress is how far a pod has come.
type progress struct {
	pod
	// calling tells that a request about the pod is under way.
	calling bool
	// refused tells that the last eviction was refused because of a budget; failure is
	// what else was wrong with the last request.
	refused bool
	failure error
	// since is when the first request failed, last when the last one did.
	since, last time.Time
	// counted is when a refusal was last counted, attempts how often that was.
	counted  time.Time
	attempts int

	// sent is when the pod was evicted, or first seen to be leaving.
	sent time.Time
	// awaited are the volumes whose way is followed.
	awaited []awaited
	// removed tells that the API server has accepted the deletion by force.
	removed bool
	// detached is when all of them were first seen to be detached from the node.
	detached time.Time
	// settled tells that no volume of the pod is waited for any longer.
	settled bool
}

// awaited is a volume of a pod that leaves.
type awaited struct {
	volume, id string
	// was tells that it was attached to the node when the pod began to leave. Only then
	// it will be attached elsewhere.
	was bool
}

// known tells what has to be looked up.
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

// observe brings the ledger up to what the facts show.
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
		case p.leaving && known.sent.IsZero():
			l.depart(known, f)
			known.sent = f.now
		case !p.leaving && known.unheard(f.now):
			*known = progress{pod: p}
		}
	}
	for uid, p := range l.pods {
		p.followVolumes(f, r, l.overdue)
		if !here[uid] && !p.calling && (p.sent.IsZero() || p.settled) {
			delete(l.pods, uid)
		}
	}
}

// unheard tells that the API server took a request long ago, and nothing came of it: a
// conflict may have meant something else than another pod of the same name.
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

// depart notes which volumes have to be followed when the pod leaves now.
func (l *ledger) depart(p *progress, f facts) {
	p.awaited = nil
	for _, name := range p.volumes {
		if v := f.volumes[name]; v.ID != "" && !v.multi && !l.shared[name] {
			p.awaited = append(p.awaited, awaited{volume: name, id: v.ID, was: f.isAttached(v.ID)})
		}
	}
}

// followVolumes sees whether the pod's volumes have gone from the node, then whether they
// have come to another.
func (p *progress) followVolumes(f facts, r rules, overdue map[string]bool) {
	if p.sent.IsZero() || p.settled {
		return
	}
	if here := p.stillHere(f); len(here) > 0 {
		if !f.now.Before(p.detachBy(r)) {
			for _, name := range here {
				overdue[name] = true
			}
			p.settled = true
		}
		return
	}
	if p.detached.IsZero() {
		p.detached = f.now
	}
	p.settled = len(p.notBack(f)) == 0 || !f.now.Before(p.reattachBy(r))
}

// stillHere names the awaited volumes that are attached to the node.
func (p *progress) stillHere(f facts) []string {
	var names []string
	for _, a := range p.awaited {
		if f.isAttached(a.id) {
			names = append(names, a.volume)
		}
	}
	return names
}

// notBack names the awaited volumes that are not attached to another node yet. Nobody
// makes another pod of one that nothing controls, so its volumes are not awaited.
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

func (p *progress) detachBy(r rules) time.Time   { return p.sent.Add(p.grace + r.detach) }
func (p *progress) reattachBy(r rules) time.Time { return p.detached.Add(r.reattach) }

// goneSlack is what a pod gets beyond its grace period.
const goneSlack = 30 * time.Second

func (p *progress) goneBy(r rules) time.Time {
	return p.sent.Add(min(p.grace, r.timeout) + goneSlack)
}

// holds tells that no other pod with volumes may leave that the pod stands in the way of.
func (p *progress) holds() bool {
	return len(p.volumes) > 0 && (p.calling || !p.sent.IsZero() && !p.settled)
}
