package drain

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// arrives adds a Pod that is created now, as a successor of the owner's last one.
func (s *story) arrives(name, owner string, tolerates bool) *story {
	return s.pod(name, 0).change(name, func(p *pod) {
		p.arrival = arrival{created: s.facts.now, owner: owner, tolerates: tolerates}
	})
}

// TestDrain_IgnoresPodsThatTolerateTheCordon checks a Pod whose successor tolerates every taint and fits only on this
// node. Each Pod that was on the node at the cordon is evicted and awaited once.
func TestDrain_IgnoresPodsThatTolerateTheCordon(t *testing.T) {
	s := newStory(t).arrives("web-1", "web", true).arrives("db-1", "db", false)
	s.pass(responses{"web-1": "ok", "db-1": "ok"}, "db-1", "web-1")
	s.later(time.Second).gone("web-1").arrives("web-2", "web", true)
	r := s.pass(nil)
	s.waits(r, "pod db-1")
	if want := []types.NamespacedName{{Namespace: "ns", Name: "web-2"}}; !slices.Equal(r.Returned, want) {
		t.Errorf("returned: %v, want %v", r.Returned, want)
	}
	s.later(time.Second).gone("db-1").gone("web-2").arrives("web-3", "web", true)
	s.waits(s.pass(nil))
}

// TestDrain_ForcedIgnoresPodsThatComeBack checks that a forced drain does not delete successors forever, either.
func TestDrain_ForcedIgnoresPodsThatComeBack(t *testing.T) {
	s := newStory(t).arrives("web-1", "web", true)
	s.rules.force = ForceDeadline
	s.pass(responses{"web-1": "ok"}, "force:web-1")
	s.later(2*time.Second).gone("web-1").arrives("web-2", "web", true)
	s.waits(s.pass(nil))
}

// TestDrain_EvictsFewPodsOfAnOwnerThatBringsThemBack checks Pods that do not tolerate the cordon, such as those of a
// template with spec.nodeName. The time between their evictions increases, and in the end they are ignored.
func TestDrain_EvictsFewPodsOfAnOwnerThatBringsThemBack(t *testing.T) {
	s := newStory(t).arrives("job-0", "job", false)
	s.pass(responses{"job-0": "ok"}, "job-0")
	evicted := []time.Duration{}
	name := "job-0"
	for ; s.facts.now.Sub(start) < time.Hour; s.later(time.Second) {
		if p := s.l.pods[types.UID(name)]; p != nil && !p.sent.IsZero() {
			s.gone(name)
			name += "x"
			s.later(time.Second).arrives(name, "job", false)
		}
		ops, made := pass(s.facts, s.rules, s.l)
		for _, op := range ops {
			evicted = append(evicted, s.facts.now.Sub(start))
			p := s.l.pods[op.pod.uid]
			p.calling, p.sent, p.last = false, s.facts.now, s.facts.now
		}
		if made.Done {
			break
		}
		if made.Wait == 0 && len(ops) == 0 && len(made.Waiting) > 0 && made.Waiting[0].For == ForReturn {
			t.Fatal("nothing triggers the pass that evicts the Pod")
		}
	}
	if len(evicted) != maxReturns {
		t.Errorf("%d evictions of successors, want %d: %v", len(evicted), maxReturns, evicted)
	}
	for i := 1; i < len(evicted); i++ {
		if wait := evicted[i] - evicted[i-1]; wait < returnInterval<<(i-1) {
			t.Errorf("evicted again after %v, want at least %v", wait, returnInterval<<(i-1))
		}
	}
}

// TestDrain_EvictsPodsThatTheSchedulerBoundLate checks that a Pod that arrives right after the cordon, and whose
// successors will not, is evicted and awaited.
func TestDrain_EvictsPodsThatTheSchedulerBoundLate(t *testing.T) {
	s := newStory(t).arrives("a", "one", false)
	s.pass(responses{"a": "ok"}, "a")
	s.later(time.Second).gone("a").arrives("b", "two", false)
	s.waits(s.pass(responses{"b": "ok"}, "b"), "response b")
	s.later(time.Second)
	s.waits(s.pass(nil), "pod b")
}

// TestDrain_EvictsPodsOfAnEarlierCordon checks that Pods that were created before the drain are evicted although the
// cache shows them late.
func TestDrain_EvictsPodsOfAnEarlierCordon(t *testing.T) {
	s := newStory(t).arrives("a", "one", true)
	s.pass(responses{"a": "ok"}, "a")
	s.arrives("late", "two", true).change("late", func(p *pod) { p.created = start.Add(-time.Second) })
	s.pass(responses{"late": "ok"}, "late")
}

// TestConfirm_IgnoresPodsThatComeBack checks the Pods that the API server lists and the cache does not show yet.
func TestConfirm_IgnoresPodsThatComeBack(t *testing.T) {
	s := newStory(t).arrives("web-1", "web", true)
	s.pass(responses{"web-1": "ok"}, "web-1")
	later := start.Add(time.Minute)
	list := []remaining{
		{types.NamespacedName{Name: "web-2"}, "web-2", arrival{created: later, owner: "web", tolerates: true}},
		{types.NamespacedName{Name: "unseen"}, "unseen", arrival{created: start, owner: "web", tolerates: true}},
		{types.NamespacedName{Name: "other"}, "other", arrival{created: later, owner: "other"}},
	}
	want := []types.NamespacedName{{Name: "unseen"}, {Name: "other"}}
	if diff := cmp.Diff(want, (&Drainer{}).awaited(s.l, list)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestComesBack compares tolerations with those of the API.
func TestComesBack(t *testing.T) {
	for name, tc := range map[string]struct {
		given []corev1.Toleration
		want  bool
	}{
		"none":            {nil, false},
		"everything":      {[]corev1.Toleration{{Operator: corev1.TolerationOpExists}}, true},
		"of the effect":   {[]corev1.Toleration{{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}}, true},
		"another effect":  {[]corev1.Toleration{{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}}, false},
		"the cordon":      {[]corev1.Toleration{{Key: corev1.TaintNodeUnschedulable, Operator: corev1.TolerationOpExists}}, true},
		"its empty value": {[]corev1.Toleration{{Key: corev1.TaintNodeUnschedulable}}, true},
		"another value":   {[]corev1.Toleration{{Key: corev1.TaintNodeUnschedulable, Value: "x"}}, false},
		"another taint":   {[]corev1.Toleration{{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists}}, false},
	} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(start.Add(time.Second))}}
		p.Spec.Tolerations = tc.given
		if got := ComesBack(p, start); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
		if ComesBack(p, start.Add(time.Minute)) || ComesBack(p, time.Time{}) {
			t.Errorf("%s: a Pod that was there before comes back", name)
		}
		stripped := &corev1.Pod{Spec: corev1.PodSpec{Tolerations: cordonTolerations(p)}}
		if len(stripped.Spec.Tolerations) > 1 || (len(stripped.Spec.Tolerations) == 1) != tc.want {
			t.Errorf("%s: the cache keeps %v", name, stripped.Spec.Tolerations)
		}
	}
}
