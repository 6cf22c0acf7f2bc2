package drain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Report describes the progress of a drain.
type Report struct {
	// Done reports that the drain is complete. After a forced drain, the node's volume attachments must be
	// deleted before its VM.
	Done bool
	// Force is why the drain is forced.
	Force Force
	// NodeGone reports that the Node does not exist.
	NodeGone bool
	// Started are the requests of this pass.
	Started []Action
	// Waiting is what the drain waits for, sorted by Pod.
	Waiting []Waiting
	// Failed are the problems that are retried, sorted by Pod.
	Failed []Failure
	// Left are the Pods that still exist when a forced drain is done.
	Left []types.NamespacedName
	// Returned are the Pods that came to the node after it was cordoned and that the drain ignores, since their owners
	// bring them back. They terminate with the VM.
	Returned []types.NamespacedName
	// Wait is the time until another pass is due. It is zero if only an event can change anything.
	Wait time.Duration
}

// Action is a request about a pod.
type Action struct {
	Pod types.NamespacedName
	// Forced reports that the Pod is deleted ignoring budgets and its grace period, for the given Reason.
	Forced bool
	Reason string
}

// Cause is a kind of Waiting.
type Cause string

const (
	// ForResponse waits for the API server's response.
	ForResponse Cause = "response"
	// ForPod waits for the Pod to terminate.
	ForPod Cause = "pod"
	// ForBudget waits until the PodDisruptionBudget in Object, as "namespace/name", allows the eviction. Object
	// is empty if the budget is not known yet.
	ForBudget Cause = "budget"
	// ForIdentity waits for the provider to identify the pod's volumes.
	ForIdentity Cause = "identity"
	// ForTurn waits for other Pods with volumes that come first.
	ForTurn Cause = "turn"
	// ForDetach waits for the volume Object to be detached from the node.
	ForDetach Cause = "detach"
	// ForReturn waits before it evicts a Pod whose owner has brought it back to the node.
	ForReturn Cause = "return"
	// ForCache waits for the cache to show the pod.
	ForCache Cause = "cache"
	// ForLists waits until the cache can be read. Its Waiting names no Pod.
	ForLists Cause = "lists"
	// ForReattach waits for the volume Object to be attached to another node.
	ForReattach Cause = "reattach"
)

// Waiting is something that the drain waits for. The Pod may be gone.
type Waiting struct {
	For    Cause
	Pod    types.NamespacedName
	Object string
	// Next is when the wait expires or the request is retried. It is zero if only an event can end the wait.
	Next time.Time
}

// String returns a description that does not change between passes.
func (w Waiting) String() string {
	if w.For == ForBudget && w.Object == "" {
		return fmt.Sprintf("a pod disruption budget to allow the eviction of pod %s", w.Pod)
	}
	return strings.NewReplacer("{pod}", w.Pod.String(), "{object}", w.Object).Replace(awaits[w.For])
}

var awaits = map[Cause]string{
	ForResponse: "the API server to respond about pod {pod}",
	ForPod:      "pod {pod} to terminate",
	ForBudget:   "pod disruption budget {object} to allow the eviction of pod {pod}",
	ForIdentity: "the provider to identify the volumes of pod {pod}",
	ForTurn:     "other pods with volumes to leave before pod {pod}",
	ForDetach:   "volume {object} of pod {pod} to be detached",
	ForReturn:   "the next eviction of pod {pod}, which has come back",
	ForCache:    "the cache to show pod {pod}",
	ForLists:    "the lists of pods and volumes of the target cluster",
	ForReattach: "volume {object} of pod {pod} to be attached to another node",
}

// Failure is a problem of a pod.
type Failure struct {
	Pod types.NamespacedName
	// Text is a clause without a period.
	Text string
}

// Forced lists, in one line, the Pods whose forced deletion began in this pass, with the reasons. It returns an
// empty string if there are none.
func (r Report) Forced() string {
	var texts []string
	for _, action := range r.Started {
		if action.Forced {
			texts = append(texts, fmt.Sprintf("%s (%s)", action.Pod, action.Reason))
		}
	}
	return inShort(texts, ", ")
}

// Problem lists the failures in one line that does not change between passes. It returns an empty string if
// there are none.
func (r Report) Problem() string {
	var texts []string
	for _, failure := range r.Failed {
		texts = append(texts, failure.Text)
	}
	return inShort(texts, "; ")
}

// Summary lists in one line what the drain waits for. It returns an empty string if the drain does not wait.
// Pods that wait for other Pods are only counted.
func (r Report) Summary() string {
	var texts []string
	turns := 0
	for _, w := range r.Waiting {
		if w.For == ForTurn {
			turns++
			continue
		}
		texts = append(texts, w.String())
	}
	summary := inShort(texts, ", ")
	if turns > 0 {
		summary += fmt.Sprintf(", then %d more with volumes", turns)
	}
	return strings.TrimPrefix(summary, ", then ")
}

func inShort(texts []string, separator string) string {
	const most = 5
	if len(texts) <= most {
		return strings.Join(texts, separator)
	}
	return strings.Join(texts[:most], separator) + fmt.Sprintf("%sand %d more", separator, len(texts)-most)
}

type reporter struct {
	Report
	f facts
	r rules
	l *drainState
}

func report(f facts, r rules, l *drainState, ops []operation) Report {
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
	made.finish()
	return made.Report
}

func (m *reporter) wait(p *progress, cause Cause, object string, next time.Time) {
	m.Waiting = append(m.Waiting, Waiting{For: cause, Pod: p.key, Object: object, Next: next})
}

func (m *reporter) fail(p *progress, format string, args ...any) {
	m.Failed = append(m.Failed, Failure{Pod: p.key, Text: fmt.Sprintf(format, args...)})
}

// forcedSlack is how late the cache may show a forced deletion. Pods that finalizers keep for longer are not
// awaited.
const forcedSlack = time.Second

func (m *reporter) forced(p *progress) {
	if p.failure != nil {
		m.fail(p, "deleting pod %s: %v", p.key, p.failure)
	}
	switch {
	case !m.present(p):
	case p.calling, !p.ended() && !m.l.givenUp(p, m.f.now):
		m.wait(p, ForResponse, "", p.retryAfterFailure())
	case m.f.now.Before(p.sent.Add(forcedSlack)):
		m.wait(p, ForPod, "", p.sent.Add(forcedSlack))
	default:
		m.Left = append(m.Left, p.key)
	}
}

func (m *reporter) present(p *progress) bool {
	return slices.ContainsFunc(m.f.pods, func(other pod) bool { return other.uid == p.uid })
}

// retryAfterFailure returns when a forced deletion is retried, or zero while one is in progress.
func (p *progress) retryAfterFailure() time.Time {
	if p.calling {
		return time.Time{}
	}
	return p.last.Add(failureInterval)
}

func (m *reporter) normal(p *progress) {
	again := p.sent.IsZero() && (p.refused || p.failure != nil)
	switch {
	case p.calling && !again: // a retry is not reported
		m.wait(p, ForResponse, "", time.Time{})
	case !p.sent.IsZero():
		m.leaving(p)
	case p.refused:
		m.refused(p)
	case p.failure != nil:
		m.fail(p, "error while evicting pod %q: %v", p.key.Name, p.failure)
		m.wait(p, ForPod, "", m.retry(p))
	case m.f.now.Before(p.notBefore):
		m.wait(p, ForReturn, "", p.notBefore)
	case unidentified(m.f, m.l, p.pod):
		m.wait(p, ForIdentity, "", time.Time{})
	default:
		m.wait(p, ForTurn, "", time.Time{})
	}
}

// retry returns when a failed request is retried, or zero while one is in progress.
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
		object = client.ObjectKeyFromObject(b).String()
		if Misconfigured(b) { // Gardener searches for this text
			m.fail(p, "error while evicting pod %q: pod disruption budget %s is misconfigured and requires zero voluntary evictions", p.key.Name, object)
		}
	}
	m.wait(p, ForBudget, object, next)
}

func (m *reporter) leaving(p *progress) {
	if m.present(p) {
		next := p.terminationDeadline(m.r)
		if !m.f.now.Before(next) {
			m.fail(p, "pod %s has not terminated within %v", p.key, next.Sub(p.sent))
			next = time.Time{}
		}
		m.wait(p, ForPod, "", next)
	}
	if p.settled {
		return
	}
	if p.detached.IsZero() {
		for _, name := range p.stillAttached(m.f) {
			m.wait(p, ForDetach, name, p.detachBy(m.r))
		}
		return
	}
	for _, name := range p.notReattached(m.f) {
		m.wait(p, ForReattach, name, p.reattachBy(m.r))
	}
}

func (m *reporter) finish() {
	slices.SortFunc(m.Waiting, func(a, b Waiting) int {
		return cmp.Or(compareKeys(a.Pod, b.Pod), cmp.Compare(a.For, b.For), cmp.Compare(a.Object, b.Object))
	})
	slices.SortFunc(m.Failed, func(a, b Failure) int {
		return cmp.Or(compareKeys(a.Pod, b.Pod), cmp.Compare(a.Text, b.Text))
	})
	slices.SortFunc(m.Left, compareKeys)
	m.Done = len(m.Waiting) == 0
	due := time.Time{}
	for _, w := range m.Waiting {
		if !w.Next.IsZero() && (due.IsZero() || w.Next.Before(due)) {
			due = w.Next
		}
	}
	if !due.IsZero() {
		m.Wait = max(due.Sub(m.f.now), time.Millisecond)
	}
}
