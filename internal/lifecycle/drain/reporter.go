package drain

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// reporter makes the report of a pass.
type reporter struct {
	Report
	f facts
	r rules
	l *ledger
}

func report(f facts, r rules, l *ledger, ops []operation) Report {
	made := &reporter{Report: Report{Force: r.force}, f: f, r: r, l: l}
	for _, op := range ops {
		made.Started = append(made.Started, Action{Pod: op.pod.key, Forced: op.force, Reason: op.reason})
	}
	for _, p := range l.pods {
		if r.force != NotForced {
			made.forced(p)
		} else {
			made.normal(p)
		}
	}
	made.unawaited()
	made.finish()
	return made.Report
}

func (m *reporter) wait(p *progress, cause Cause, object string, since, next time.Time) {
	m.Waiting = append(m.Waiting, Waiting{For: cause, Pod: p.key, Object: object, Since: since, Next: next})
}

func (m *reporter) fail(p *progress, since time.Time, format string, args ...any) {
	m.Failed = append(m.Failed, Failure{Pod: p.key, Text: fmt.Sprintf(format, args...), Since: since})
}

// forcedSlack is how long a pod that was deleted by force may still be seen. The cache is
// that late; finalizers may hold the pod for longer, and are not waited for.
const forcedSlack = time.Second

// forced reports a pod of a forced drain.
func (m *reporter) forced(p *progress) {
	if p.failure != nil {
		m.fail(p, p.since, "deleting pod %s: %v", p.key, p.failure)
	}
	switch {
	case !m.present(p):
	case p.calling, !p.ended() && !m.l.givenUp(p, m.f.now):
		m.wait(p, ForAnswer, "", time.Time{}, p.retryAfterFailure())
	case m.f.now.Before(p.sent.Add(forcedSlack)):
		m.wait(p, ForPod, "", p.sent, p.sent.Add(forcedSlack))
	default:
		m.Left = append(m.Left, p.key)
	}
}

func (m *reporter) present(p *progress) bool {
	return slices.ContainsFunc(m.f.pods, func(other pod) bool { return other.uid == p.uid })
}

func (p *progress) retryAfterFailure() time.Time {
	if p.failure == nil {
		return time.Time{}
	}
	return p.last.Add(failureInterval)
}

// normal reports a pod of a drain that is not forced.
func (m *reporter) normal(p *progress) {
	again := p.sent.IsZero() && (p.refused || p.failure != nil)
	switch {
	case p.calling && !again: // that it is tried again is no news
		m.wait(p, ForAnswer, "", time.Time{}, time.Time{})
	case !p.sent.IsZero():
		m.leaving(p)
	case p.refused:
		m.refused(p)
	case p.failure != nil:
		m.fail(p, p.since, "error while evicting pod %q: %v", p.key.Name, p.failure)
		m.wait(p, ForPod, "", p.since, m.retry(p))
	case unidentified(m.f, m.l, p.pod):
		m.wait(p, ForIdentity, "", time.Time{}, time.Time{})
	default:
		m.wait(p, ForTurn, "", time.Time{}, time.Time{})
	}
}

// retry is when a request that failed is made again; zero while it is.
func (m *reporter) retry(p *progress) time.Time {
	if p.calling {
		return time.Time{}
	}
	return p.nextTry(m.f)
}

func (m *reporter) refused(p *progress) {
	b, next := m.f.budgets[p.uid], m.retry(p)
	object := ""
	if b != nil {
		object = b.key.String()
		if b.misconfigured {
			m.fail(p, p.since, "error while evicting pod %q: %s", p.key.Name, b.sentence())
		}
	}
	m.wait(p, ForBudget, object, p.since, next)
}

// leaving reports a pod that is on its way, and its volumes.
func (m *reporter) leaving(p *progress) {
	if m.present(p) {
		next := p.goneBy(m.r)
		if !m.f.now.Before(next) {
			m.fail(p, next, "pod %s has not ended within %v", p.key, next.Sub(p.sent))
			next = time.Time{}
		}
		m.wait(p, ForPod, "", p.sent, next)
	}
	if p.settled {
		return
	}
	if p.detached.IsZero() {
		for _, name := range p.stillHere(m.f) {
			m.wait(p, ForDetach, name, p.sent, p.detachBy(m.r))
		}
		return
	}
	for _, name := range p.notBack(m.f) {
		m.wait(p, ForReattach, name, p.detached, p.reattachBy(m.r))
	}
}

func (m *reporter) unawaited() {
	for _, name := range slices.Sorted(maps.Keys(m.f.volumes)) {
		if v := m.f.volumes[name]; v.Problem != "" && !v.multi && !m.l.shared[name] {
			m.Unawaited = append(m.Unawaited, fmt.Sprintf("volume %s: %s", name, v.Problem))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.l.overdue)) {
		m.Unawaited = append(m.Unawaited, fmt.Sprintf("volume %s: not detached in time", name))
	}
}

// finish sorts, and finds out when something is due.
func (m *reporter) finish() {
	slices.SortFunc(m.Waiting, func(a, b Waiting) int {
		return cmp.Or(strings.Compare(a.Pod.String(), b.Pod.String()), strings.Compare(string(a.For), string(b.For)), strings.Compare(a.Object, b.Object))
	})
	slices.SortFunc(m.Failed, func(a, b Failure) int {
		return cmp.Or(strings.Compare(a.Pod.String(), b.Pod.String()), strings.Compare(a.Text, b.Text))
	})
	slices.SortFunc(m.Left, func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) })
	if m.Done = len(m.Waiting) == 0; m.Done {
		return
	}
	due := time.Time{}
	if m.Force == NotForced {
		due = m.r.deadline
	}
	for _, w := range m.Waiting {
		if !w.Next.IsZero() && (due.IsZero() || w.Next.Before(due)) {
			due = w.Next
		}
	}
	if !due.IsZero() {
		m.Wait = max(due.Sub(m.f.now), time.Millisecond)
	}
}
