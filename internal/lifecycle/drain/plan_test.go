package drain

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// story simulates a drain with scripted Pods and volumes and an API server with scripted responses.
type story struct {
	t     *testing.T
	facts facts
	rules rules
	l     *drainState
}

func newStory(t *testing.T) *story {
	return &story{
		t: t,
		facts: facts{
			now: start, volumes: map[string]volume{}, elsewhere: map[string]bool{}, budgets: map[types.UID]*policyv1.PodDisruptionBudget{},
		},
		rules: rules{
			strategy: Serial, detach: 2 * time.Minute, reattach: 90 * time.Second, timeout: 2 * time.Hour,
			retries: 3, since: start,
		},
		l: newDrainState("node", start),
	}
}

// pod adds a Pod with volumes that are attached to the node.
func (s *story) pod(name string, priority int32, volumes ...string) *story {
	s.facts.pods = append(s.facts.pods, pod{
		key: types.NamespacedName{Namespace: "ns", Name: name}, uid: types.UID(name),
		priority: priority, grace: 30 * time.Second, controlled: true, volumes: volumes,
	})
	slices.SortFunc(s.facts.pods, byPriority)
	for _, v := range volumes {
		if _, ok := s.facts.volumes[v]; !ok {
			s.facts.volumes[v] = volume{id: v}
			s.attach(v)
		}
	}
	return s
}

func (s *story) change(name string, how func(*pod)) *story {
	for i := range s.facts.pods {
		if s.facts.pods[i].key.Name == name {
			how(&s.facts.pods[i])
		}
	}
	return s
}

func (s *story) gone(name string) *story {
	s.facts.pods = slices.DeleteFunc(s.facts.pods, func(p pod) bool { return p.key.Name == name })
	return s
}

func (s *story) attach(v string) *story {
	s.facts.attached = append(s.facts.attached, corev1.UniqueVolumeName("kubernetes.io/csi/d^"+v))
	return s
}

func (s *story) detach(v string) *story {
	s.facts.attached = slices.DeleteFunc(s.facts.attached, func(n corev1.UniqueVolumeName) bool { return strings.HasSuffix(string(n), "^"+v) })
	return s
}

func (s *story) later(d time.Duration) *story {
	s.facts.now = s.facts.now.Add(d)
	return s
}

func (s *story) budget(name string, status policyv1.PodDisruptionBudgetStatus) *story {
	s.facts.budgets[types.UID(name)] = &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pdb"}, Status: status}
	return s
}

// The states of a budget.
var (
	refusing      = policyv1.PodDisruptionBudgetStatus{}
	allowing      = policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: 1}
	misconfigured = policyv1.PodDisruptionBudgetStatus{ExpectedPods: 1, CurrentHealthy: 1}
)

// responses are the API server's responses to evictions by Pod name.
type responses map[string]string

// pass runs a pass, compares the requests that it starts ("force:" precedes forced deletions), and applies the
// responses: ok, refused or error. Without a response, the request remains in progress.
func (s *story) pass(given responses, want ...string) Report {
	s.t.Helper()
	ops, made := pass(s.facts, s.rules, s.l)
	var got []string
	for _, op := range ops {
		name := op.pod.key.Name
		p := s.l.pods[op.pod.uid]
		switch given[name] {
		case "ok":
			p.calling, p.sent, p.last, p.removed, p.refused, p.failure = false, s.facts.now, s.facts.now, op.force, false, nil
			s.change(name, func(p *pod) { p.leaving, p.killed = true, op.force })
		case "refused":
			p.calling, p.refused, p.last = false, true, s.facts.now
		case "error":
			p.calling, p.failure, p.last = false, apierrors.NewInternalError(errors.New("broken")), s.facts.now
		}
		if op.force {
			name = "force:" + name
		}
		got = append(got, name)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		s.t.Errorf("at %v (-want +got started):\n%s", s.facts.now.Sub(start), diff)
	}
	return made
}

// waits compares what a report waits for.
func (s *story) waits(r Report, want ...string) {
	s.t.Helper()
	var got []string
	for _, w := range r.Waiting {
		got = append(got, strings.TrimRight(fmt.Sprintf("%s %s %s", w.For, w.Pod.Name, w.Object), " "))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		s.t.Errorf("at %v (-want +got waiting):\n%s", s.facts.now.Sub(start), diff)
	}
	if r.Done != (len(want) == 0) {
		s.t.Errorf("done %v while waiting for %v", r.Done, got)
	}
}

func TestPods_WithoutVolumesAreEvictedTogether(t *testing.T) {
	s := newStory(t).pod("a", 0).pod("b", 9)
	s.waits(s.pass(responses{"a": "ok"}, "b", "a"), "response a", "response b")
	s.waits(s.pass(nil), "pod a", "response b")
	s.l.pods["b"].calling, s.l.pods["b"].sent = false, s.facts.now
	s.gone("a").gone("b")
	s.waits(s.pass(nil))
	s.waits(s.pass(nil))
}

func TestPods_WithVolumesAreEvictedOneByOne(t *testing.T) {
	s := newStory(t).pod("plain", 0).pod("low", 1, "v1").pod("high", 5, "v2")
	s.pass(responses{"plain": "ok", "high": "ok"}, "plain", "high")
	s.waits(s.pass(nil), "detach high v2", "pod high", "turn low", "pod plain")
	s.gone("high").gone("plain")
	s.waits(s.pass(nil), "detach high v2", "turn low")
	s.detach("v2")
	r := s.pass(nil)
	s.waits(r, "reattach high v2", "turn low")
	if r.Wait != 90*time.Second {
		t.Errorf("the next pass is due in %v, want the timeout of the reattachment", r.Wait)
	}
	s.facts.elsewhere["v2"] = true
	s.pass(responses{"low": "ok"}, "low")
	s.gone("low").detach("v1")
	s.facts.elsewhere["v1"] = true
	s.waits(s.pass(nil))
}

func TestVolumes_WaitTimesOut(t *testing.T) {
	t.Run("detach", func(t *testing.T) {
		s := newStory(t).pod("a", 5, "v1").pod("b", 1, "v2")
		s.pass(responses{"a": "ok"}, "a")
		s.gone("a").later(30*time.Second + 2*time.Minute - 1)
		s.pass(nil)
		s.later(1).pass(responses{"b": "ok"}, "b")
	})
	t.Run("reattach", func(t *testing.T) {
		s := newStory(t).pod("a", 5, "v1").pod("b", 1, "v2")
		s.pass(responses{"a": "ok"}, "a")
		s.gone("a").detach("v1").later(time.Minute)
		s.pass(nil)
		s.later(90*time.Second - 1).pass(nil)
		r := s.later(1).pass(responses{"b": "ok"}, "b")
		if len(r.Failed) != 0 {
			t.Errorf("a volume that is not attached again is reported as a failure: %v", r.Failed)
		}
	})
}

func TestVolumes_OnlyAttachedOnesAreAwaited(t *testing.T) {
	cases := map[string]struct {
		reason string
		given  func(*story)
		want   []string // what is evicted right after a
	}{
		"exclusive":      {"", func(*story) {}, nil},
		"unknown":        {"a volume that is unknown to the provider does not block others", func(s *story) { s.facts.volumes["v1"] = volume{} }, []string{"b"}},
		"multi":          {"a volume that may be attached to several nodes is not awaited", func(s *story) { s.facts.volumes["v1"] = volume{multi: true, id: "v1"} }, []string{"b"}},
		"not attached":   {"a volume that was not attached is not awaited elsewhere", func(s *story) { s.detach("v1") }, []string{"b"}},
		"shared":         {"another pod keeps it attached", func(s *story) { s.pod("c", 0, "v1") }, []string{"b"}},
		"similar handle": {"handles are compared exactly", func(s *story) { s.detach("v1").attach("xv1") }, []string{"b"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := newStory(t).pod("a", 5, "v1").pod("b", 1, "v2")
			tc.given(s)
			s.pass(responses{"a": "ok"}, "a")
			s.pass(nil, tc.want...)
		})
	}
}

func TestVolumes_SharedOnesAreNotAwaited(t *testing.T) {
	s := newStory(t).pod("a", 5, "v").pod("b", 4, "v").pod("c", 3, "w")
	s.pass(responses{"a": "ok"}, "a")
	s.gone("a").pass(responses{"b": "ok"}, "b")
	s.pass(responses{"c": "ok"}, "c")
}

func TestPods_BareOnesAreNotAwaited(t *testing.T) {
	s := newStory(t).pod("a", 5, "v1").pod("b", 1, "v2")
	s.change("a", func(p *pod) { p.controlled = false })
	s.pass(responses{"a": "ok"}, "a")
	s.gone("a").detach("v1").pass(nil, "b")
}

func TestPods_IndependentOnesAreEvictedTogether(t *testing.T) {
	s := newStory(t).pod("a", 5, "v1", "x").pod("b", 4, "v1").pod("c", 3, "v2").pod("d", 2, "v3").pod("e", 1, "v3")
	s.rules.strategy = Independent
	s.facts.volumes["v3"] = volume{multi: true}
	s.waits(s.pass(responses{"a": "ok", "c": "ok", "d": "ok", "e": "ok"}, "a", "c", "d", "e"),
		"response a", "turn b", "response c", "response d", "response e")
	s.waits(s.pass(nil), "detach a x", "pod a", "turn b", "detach c v2", "pod c", "pod d", "pod e")
	s.detach("x").gone("a")
	s.facts.elsewhere["x"] = true
	s.pass(nil, "b")
}

func TestEviction_RefusedOneIsRetried(t *testing.T) {
	s := newStory(t).pod("a", 0)
	s.rules.retries = 2
	s.pass(responses{"a": "refused"}, "a")
	s.budget("a", refusing)
	r := s.pass(nil)
	s.waits(r, "budget a ns/pdb")
	if r.Wait != 20*time.Second {
		t.Errorf("the next pass is due in %v, want the next retry", r.Wait)
	}
	for range 2 {
		s.later(20*time.Second - 1).pass(nil)
		s.later(1).pass(responses{"a": "refused"}, "a")
	}
	r = s.later(20*time.Second).pass(responses{"a": "ok"}, "force:a")
	if len(r.Started) != 1 || r.Started[0].Reason == "" {
		t.Errorf("no reason for ignoring a budget: %+v", r.Started)
	}
}

func TestBudget_AllowedDisruptionStopsWait(t *testing.T) {
	s := newStory(t).pod("a", 0)
	s.rules.retries = 0
	s.pass(responses{"a": "refused"}, "a")
	s.budget("a", refusing).later(5 * time.Second).pass(nil)
	s.rules.retries = 1
	s.budget("a", allowing).pass(responses{"a": "refused"}, "a")
	for range 10 {
		s.later(time.Second).pass(responses{"a": "refused"}, "a") // several refusals in one interval count once
	}
}

func TestBudget_Misconfigured(t *testing.T) {
	s := newStory(t).pod("a", 0).pod("b", 0)
	s.rules.retries = 0
	s.pass(responses{"a": "refused", "b": "ok"}, "a", "b")
	s.gone("b").budget("a", misconfigured)
	for range 5 {
		s.later(20*time.Second).pass(responses{"a": "refused"}, "a")
		r := s.pass(nil)
		want := `error while evicting pod "a": pod disruption budget ns/pdb is misconfigured and requires zero voluntary evictions`
		if r.Problem() != want {
			t.Errorf("problem %q, want %q", r.Problem(), want)
		}
	}
	s.facts.now = start.Add(s.rules.timeout)
	s.rules.force = ForceDeadline
	s.pass(nil, "force:a")
}

func TestPods_RefusedVolumePodIsPostponed(t *testing.T) {
	s := newStory(t).pod("high", 5, "v1").pod("low", 1, "v2")
	s.pass(responses{"high": "refused"}, "high")
	s.budget("high", refusing).pass(responses{"low": "ok"}, "low")
	s.later(20 * time.Second).pass(nil) // due, but low's volume is being moved
	s.gone("low").detach("v2")
	s.facts.elsewhere["v2"] = true
	s.pass(nil, "high")
}

func TestEviction_Errors(t *testing.T) {
	s := newStory(t).pod("plain", 0).pod("volume", 0, "v")
	s.rules.retries = 0
	s.pass(responses{"plain": "error", "volume": "error"}, "plain", "volume")
	r := s.pass(nil)
	if len(r.Failed) != 2 || r.Done {
		t.Errorf("failures %v, done %v", r.Failed, r.Done)
	}
	for range 4 {
		s.later(5*time.Second - 1).pass(nil)
		if s.later(1); s.facts.now.Sub(start) < 20*time.Second {
			s.pass(responses{"plain": "error"}, "plain")
		}
	}
	s.pass(responses{"plain": "error"}, "plain", "force:volume") // for pods that block no others, an error never leads to ignoring a budget
}

func TestPods_IdentityIsAwaited(t *testing.T) {
	s := newStory(t).pod("a", 5, "v1").pod("b", 1, "v2")
	s.facts.volumes["v1"] = volume{pending: true}
	s.waits(s.pass(nil), "identity a", "turn b")
	s.facts.volumes["v1"] = volume{} // unknown to the provider
	s.pass(responses{"a": "ok"}, "a")
	s.gone("a").pass(responses{"b": "ok"}, "b") // the drain does not wait for its detachment
}

// TestPods_IdentityOfTerminatingPodIsAwaited checks that the volumes of a Pod are awaited even if another process
// evicted the Pod.
func TestPods_IdentityOfTerminatingPodIsAwaited(t *testing.T) {
	s := newStory(t).pod("a", 1, "v1").pod("b", 5, "v2").change("a", func(p *pod) { p.leaving = true })
	s.facts.volumes["v1"] = volume{pending: true}
	s.waits(s.pass(nil), "identity a", "turn b")
	s.facts.volumes["v1"] = volume{id: "v1"}
	s.waits(s.pass(nil), "detach a v1", "pod a", "turn b")
	s.gone("a")
	s.waits(s.pass(nil), "detach a v1", "turn b")
	s.detach("v1")
	s.facts.elsewhere["v1"] = true
	s.pass(responses{"b": "ok"}, "b")
}

func TestPods_NotTerminating(t *testing.T) {
	s := newStory(t).pod("a", 0)
	s.pass(responses{"a": "ok"}, "a")
	if r := s.later(time.Minute - 1).pass(nil); len(r.Failed) != 0 || r.Wait != 1 && r.Wait != time.Millisecond {
		t.Errorf("too early: %+v", r)
	}
	r := s.later(1).pass(nil)
	if len(r.Failed) != 1 || r.Done || r.Wait != 0 {
		t.Errorf("a pod that does not terminate is not reported: %+v", r)
	}
}

func TestEviction_LostOneIsRepeated(t *testing.T) {
	s := newStory(t).pod("a", 0)
	s.pass(responses{"a": "ok"}, "a")
	s.change("a", func(p *pod) { p.leaving = false })
	s.later(20*time.Second - 1).pass(nil)
	s.later(1).pass(nil, "a")
}

func TestDrain_ContinuesAfterRestart(t *testing.T) {
	s := newStory(t).pod("a", 5, "v1").pod("b", 1, "v2")
	s.pass(responses{"a": "ok"}, "a")
	s.later(time.Minute)
	s.l = newDrainState("node", start)
	s.waits(s.pass(nil), "detach a v1", "pod a", "turn b") // a Pod that is being deleted is recognized
	s.gone("a").detach("v1")
	s.l = newDrainState("node", start)
	s.pass(nil, "b") // a wait for reattachment is lost
}

func TestPods_Deleted(t *testing.T) {
	s := newStory(t).pod("a", 5, "v1").pod("b", 1, "v2")
	s.pass(responses{"a": "refused"}, "a")
	s.budget("a", refusing).gone("a").pass(responses{"b": "ok"}, "b")
	if len(s.l.pods) != 1 {
		t.Errorf("the state has %d pods, want only b", len(s.l.pods))
	}
}

func TestForce(t *testing.T) {
	s := newStory(t).pod("a", 5, "v1").pod("b", 1, "v2").pod("c", 0).pod("d", 0)
	s.pass(responses{"a": "ok", "c": "refused", "d": "ok"}, "c", "d", "a")
	s.rules.force = ForceRequested // takes effect during the drain
	s.pass(responses{"a": "ok", "b": "ok", "c": "error", "d": "ok"}, "force:a", "force:b", "force:c", "force:d")
	s.gone("a").gone("b")
	s.waits(s.pass(nil), "response c", "pod d")
	r := s.later(5*time.Second).pass(responses{"c": "error"}, "force:c")
	s.waits(r, "response c")
	s.later(forcedFor)
	r = s.pass(nil)
	s.waits(r)
	if r.Force != ForceRequested || len(r.Left) != 2 || len(r.Failed) != 1 {
		t.Errorf("the remaining pods are not reported: %+v", r)
	}
}

// TestForce_DeletionIsRetried checks that, during a retry, only the response, which may take long,
// triggers the next pass.
func TestForce_DeletionIsRetried(t *testing.T) {
	s := newStory(t).pod("a", 0)
	s.rules.force = ForceDeadline
	s.pass(responses{"a": "error"}, "force:a")
	if r := s.pass(nil); r.Wait != failureInterval {
		t.Errorf("after an error, the next pass is due in %v, want %v", r.Wait, failureInterval)
	}
	s.later(failureInterval).pass(responses{}, "force:a") // in progress from here on
	if r := s.later(time.Second).pass(nil); r.Wait != 0 {
		t.Errorf("the next pass is due in %v, but only the response can change anything", r.Wait)
	}
}

func TestForce_DoesNotWaitForFinalizers(t *testing.T) {
	s := newStory(t).pod("a", 0)
	s.rules.force = ForceNotReady
	s.pass(responses{"a": "ok"}, "force:a")
	s.waits(s.pass(nil), "pod a")
	r := s.later(forcedSlack).pass(nil)
	s.waits(r)
	s.l = newDrainState("node", start) // after a restart, nothing is deleted twice
	s.pass(nil)
	s.waits(s.later(forcedSlack).pass(nil))
}

func TestSummary(t *testing.T) {
	s := newStory(t).pod("a", 5, "v1").pod("b", 1, "v2").pod("c", 0, "v3")
	s.pass(responses{"a": "ok"}, "a")
	got := s.pass(nil).Summary()
	want := "volume v1 of pod ns/a to be detached, pod ns/a to terminate, then 2 more with volumes"
	if got != want {
		t.Errorf("%q, want %q", got, want)
	}
	var plain []string
	for i := range 9 {
		plain = append(plain, fmt.Sprintf("p%d", i))
		s.pod(plain[i], 0)
	}
	if got := s.pass(nil, plain...).Summary(); !strings.Contains(got, "and 6 more, then 2 more with volumes") {
		t.Errorf("%q is too long", got)
	}
}

func TestEviction_PendingRequestBlocksNextPod(t *testing.T) {
	s := newStory(t).pod("a", 5, "v1").pod("b", 1, "v2")
	s.pass(nil, "a")
	s.waits(s.pass(nil), "response a", "turn b")
}

func TestForce_DoesNotWaitAfterError(t *testing.T) {
	s := newStory(t).pod("a", 0)
	s.pass(responses{"a": "error"}, "a")
	s.later(time.Second).rules.force = ForceRequested
	s.pass(nil, "force:a")
}

func TestForce_AlreadyKilledPod(t *testing.T) {
	p := podFacts(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		DeletionTimestamp: &metav1.Time{Time: start}, DeletionGracePeriodSeconds: ptr.To[int64](0),
	}})
	if !p.killed || !p.leaving || p.grace != 0 {
		t.Errorf("a pod without a remaining grace period is read as %+v", p)
	}
}

// TestEvents_RetryIsNotReported checks that the report does not change while an eviction is retried. Otherwise each
// retry would cause two writes of the Machine's status.
func TestEvents_RetryIsNotReported(t *testing.T) {
	cases := map[string]struct {
		response string
		budget   *policyv1.PodDisruptionBudgetStatus
	}{
		"error":                {"error", nil},
		"refused":              {"refused", &refusing},
		"misconfigured budget": {"refused", &misconfigured},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := newStory(t).pod("a", 0)
			s.pass(responses{"a": tc.response}, "a")
			if tc.budget != nil {
				s.budget("a", *tc.budget)
			}
			before := s.pass(nil)
			for range 3 {
				r := s.later(evictionInterval).pass(responses{}, "a") // in progress from here on
				for range 2 {
					if r.Problem() != before.Problem() || r.Summary() != before.Summary() || r.Done {
						t.Errorf("%q and %q, were %q and %q", r.Problem(), r.Summary(), before.Problem(), before.Summary())
					}
					if r.Wait != 0 && r.Wait < time.Minute {
						t.Errorf("the next pass is due in %v, but only the response can change anything", r.Wait)
					}
					r = s.pass(nil)
				}
				p := s.l.pods["a"]
				p.calling, p.last = false, s.facts.now
			}
		})
	}
}

// TestEviction_RefusedPodTerminatesAnyway checks that an earlier problem is dropped when the Pod is deleted anyway.
func TestEviction_RefusedPodTerminatesAnyway(t *testing.T) {
	for _, response := range []string{"refused", "error"} {
		s := newStory(t).pod("a", 0)
		s.pass(responses{"a": response}, "a")
		s.change("a", func(p *pod) { p.leaving = true })
		r := s.pass(nil)
		s.waits(r, "pod a")
		if r.Problem() != "" {
			t.Errorf("problem %q of a pod that is being deleted", r.Problem())
		}
	}
}

// TestEvents_ExhaustedEvictionsAreReported checks that the report shows which Pod is deleted forcibly, and why.
func TestEvents_ExhaustedEvictionsAreReported(t *testing.T) {
	for response, want := range map[string]string{
		"refused": "ns/a (its eviction was refused 1 time(s))",
		"error":   "ns/a (its eviction failed 1 time(s), most recently with: Internal error occurred: broken)",
	} {
		s := newStory(t).pod("a", 0, "v")
		s.rules.retries = 0
		s.pass(responses{"a": response}, "a")
		s.budget("a", refusing)
		if got := s.later(evictionInterval).pass(responses{"a": "ok"}, "force:a").Forced(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestPods_ExtremeGracePeriods checks that grace periods that are too long for a duration are limited.
func TestPods_ExtremeGracePeriods(t *testing.T) {
	p := podFacts(&corev1.Pod{Spec: corev1.PodSpec{TerminationGracePeriodSeconds: ptr.To[int64](1 << 62)}})
	if p.grace < 24*time.Hour || (&progress{pod: p, sent: start}).detachBy(rules{detach: time.Minute}).Before(start) {
		t.Errorf("it is read as %v", p.grace)
	}
}

// TestIdentity_OfAnEvictedPodIsNotAwaited checks that an evicted pod whose volumes are settled does not hold back
// others while its driver identifies volumes again.
func TestIdentity_OfAnEvictedPodIsNotAwaited(t *testing.T) {
	s := newStory(t).pod("a", 5, "v1").pod("b", 1, "v2")
	s.facts.volumes["v1"] = volume{} // the provider does not know it
	s.pass(responses{"a": "ok"}, "a")
	s.facts.volumes["v1"] = volume{pending: true}
	s.pass(nil, "b")
}

// TestIdentity_OfVolumesThatAreNotAwaited checks that an eviction does not wait for the ID of a volume whose detachment
// is not awaited.
func TestIdentity_OfVolumesThatAreNotAwaited(t *testing.T) {
	s := newStory(t).pod("a", 5, "v1")
	s.facts.volumes["v1"] = volume{pending: true, multi: true}
	s.pass(nil, "a")

	s = newStory(t).pod("a", 5, "v1").pod("b", 1, "v1")
	s.facts.volumes["v1"] = volume{pending: true}
	s.pass(nil, "a")
}

// TestEviction_RefusedByAnUnknownBudget checks that an eviction is retried soon if the cache does not show the budget.
func TestEviction_RefusedByAnUnknownBudget(t *testing.T) {
	s := newStory(t).pod("a", 0)
	s.pass(responses{"a": "refused"}, "a")
	r := s.later(budgetInterval - 1).pass(nil)
	s.waits(r, "budget a")
	s.later(1).pass(responses{"a": "refused"}, "a")
	s.budget("a", refusing)
	if r := s.pass(nil); r.Problem() != "" {
		t.Errorf("a budget that refuses is a problem: %q", r.Problem())
	}
}

// TestForce_CacheDoesNotShowTheDeletion checks that an accepted deletion is not repeated before the cache shows it.
func TestForce_CacheDoesNotShowTheDeletion(t *testing.T) {
	s := newStory(t).pod("a", 0)
	s.rules.force = ForceDeadline
	s.pass(responses{"a": "ok"}, "force:a")
	s.change("a", func(p *pod) { p.leaving, p.killed = false, false })
	s.later(time.Second).pass(nil)
}

// TestForce_PodThatAppearsLate checks that it is deleted although the deletion of others was given up.
func TestForce_PodThatAppearsLate(t *testing.T) {
	s := newStory(t).pod("a", 0)
	s.rules.force = ForceDeadline
	s.pass(responses{"a": "error"}, "force:a")
	s.later(forcedFor).pod("late", 0).pass(nil, "force:late")
}

// TestForce_RequestUnderWayIsNotRepeated checks that a forced deletion of a pod that was evicted without effect is not
// started twice.
func TestForce_RequestUnderWayIsNotRepeated(t *testing.T) {
	s := newStory(t).pod("a", 0)
	s.pass(responses{"a": "ok"}, "a")
	s.change("a", func(p *pod) { p.leaving = false })
	s.rules.force = ForceRequested
	s.later(evictionInterval-1).pass(nil, "force:a")
	s.later(1).pass(nil)
}

// TestForce_Withdrawn checks that a deletion that is under way is awaited when the drain is no longer forced.
func TestForce_Withdrawn(t *testing.T) {
	s := newStory(t).pod("a", 0)
	s.pass(responses{"a": "ok"}, "a")
	s.rules.force = ForceRequested
	s.pass(responses{"a": "error"}, "force:a")
	s.later(failureInterval).pass(nil, "force:a")
	s.rules.force = NotForced
	s.waits(s.pass(nil), "response a")
}

// TestKnown_Volumes checks that only the attachments of awaited volumes are read.
func TestKnown_Volumes(t *testing.T) {
	s := newStory(t).pod("a", 5, "v1", "v2")
	s.facts.volumes["v2"] = volume{} // the provider does not know it
	s.pass(responses{"a": "ok"}, "a")
	if diff := cmp.Diff([]string{"v1"}, s.l.known().volumes); diff != "" {
		t.Errorf("awaited (-want +got):\n%s", diff)
	}
	s.detach("v1")
	s.facts.elsewhere["v1"] = true
	s.pass(nil)
	if got := s.l.known().volumes; len(got) > 0 {
		t.Errorf("awaited after it was reattached: %q", got)
	}
	s.gone("a").pass(nil)
	if len(s.l.pods) > 0 {
		t.Errorf("the state still has %d pods", len(s.l.pods))
	}
}

// TestVanishedPod_RequestUnderWay checks that the state keeps a pod until its request has returned.
func TestVanishedPod_RequestUnderWay(t *testing.T) {
	s := newStory(t).pod("a", 0)
	s.pass(nil, "a")
	s.gone("a").pass(nil)
	if s.l.pods["a"] == nil {
		t.Error("the state has no pod for the response")
	}
}

// TestVolumes_WaitThatExpiredIsNotResumed checks that a volume that is detached too late is not awaited again.
func TestVolumes_WaitThatExpiredIsNotResumed(t *testing.T) {
	s := newStory(t).pod("a", 5, "v1").pod("b", 1, "v2")
	s.pass(responses{"a": "ok"}, "a")
	s.later(30*time.Second+s.rules.detach).pass(nil, "b")
	s.waits(s.pass(nil), "pod a", "response b")
	s.detach("v1")
	s.waits(s.pass(nil), "pod a", "response b")
}

// TestVolumes_RefusedPodIsAwaitedLater checks that the wait for volumes begins with the eviction, however long it was
// refused before.
func TestVolumes_RefusedPodIsAwaitedLater(t *testing.T) {
	s := newStory(t).pod("a", 5, "v1")
	s.rules.retries = 1000
	s.pass(responses{"a": "refused"}, "a")
	s.budget("a", refusing).later(evictionInterval).pass(responses{"a": "refused"}, "a")
	s.later(10*time.Minute).budget("a", allowing).pass(responses{"a": "ok"}, "a")
	s.pod("b", 1, "v2").waits(s.pass(nil), "detach a v1", "pod a", "turn b")
}

// TestVolumes_PodWithoutVolumesHoldsBackNothing checks that a pod with volumes does not wait for one without.
func TestVolumes_PodWithoutVolumesHoldsBackNothing(t *testing.T) {
	s := newStory(t).pod("plain", 0)
	s.pass(nil, "plain")
	s.pod("a", 0, "v1").pass(nil, "a")
}
