package drain

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"
)

// server is an API server that lists pods.
type server struct {
	Evictor
	pods    []corev1.Pod
	failure error
	asked   []string // the nodes, "" for all
}

func (s *server) Left(_ context.Context, node string, limit int64) ([]corev1.Pod, bool, error) {
	s.asked = append(s.asked, node)
	var left []corev1.Pod
	for _, pod := range s.pods {
		if node == "" || pod.Spec.NodeName == node {
			left = append(left, pod)
		}
	}
	if limit > 0 && int64(len(left)) > limit {
		return left[:limit], true, s.failure
	}
	return left, false, s.failure
}

func podsOn(node string, count int) []corev1.Pod {
	pods := make([]corev1.Pod, count)
	for i := range pods {
		pods[i].Name, pods[i].Spec.NodeName = node, node
	}
	return pods
}

// TestConfirm: how often the API server is asked, and what for.
func TestConfirm(t *testing.T) {
	clock := testingclock.NewFakeClock(start)
	api := &server{pods: podsOn("busy", 1)}
	d := New(Options{Evictor: api, Clock: clock})
	done := func(l *ledger) bool {
		made := Report{Done: true}
		d.confirm(t.Context(), l, &made)
		if made.Done != (made.Wait == 0) || !made.Done && len(made.Waiting)+len(made.Failed) == 0 {
			t.Errorf("the report does not say what is awaited: %+v", made)
		}
		return made.Done
	}
	asked := func(want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, api.asked); diff != "" {
			t.Errorf("questions (-want +got):\n%s", diff)
		}
		api.asked = nil
	}
	begin := func(node string) *ledger { return newLedger(node, clock.Now()) }

	a, b, busy := begin("a"), begin("b"), begin("busy")
	clock.Step(time.Second)
	if !done(a) || !done(a) || !done(b) || done(busy) {
		t.Error("not as the API server said")
	}
	asked("")
	if done(busy) {
		t.Error("it does not wait")
	}
	api.pods = nil
	clock.Step(failureInterval)
	if !done(busy) {
		t.Error("it waits for a pod that is gone")
	}
	if !done(begin("c")) { // which was cordoned later
		t.Error("it waits")
	}
	asked("", "")

	clock.Step(time.Second)
	failing := begin("a")
	api.failure = errors.New("the API server is away")
	clock.Step(time.Second)
	if done(failing) || done(failing) {
		t.Error("done without an answer")
	}
	asked("")
	api.failure = nil
	clock.Step(failureInterval)
	if !done(failing) {
		t.Error("it waits when the API server is back")
	}
	asked("")

	api.pods = podsOn("other", censusLimit+1)
	clock.Step(time.Second)
	d1, d2 := begin("a"), begin("b")
	clock.Step(time.Second)
	if !done(d1) || !done(d2) {
		t.Error("pods of another node are awaited")
	}
	asked("", "a", "b")
}

// TestAForcedDrainMayPrecedeTheCordon: an answer from before the cordon does not count.
func TestAForcedDrainMayPrecedeTheCordon(t *testing.T) {
	api := &server{}
	d := drainerOver(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}})
	clock := testingclock.NewFakeClock(start)
	d.Evictor, d.Clock = api, clock
	req := Request{Machine: types.NamespacedName{Name: "m"}, Node: "node", Since: start, Timeout: time.Hour, Force: ForceRequested}
	pass := func() {
		t.Helper()
		if report, err := d.Drain(t.Context(), req); err != nil || !report.Done {
			t.Fatalf("%+v, %v", report, err)
		}
		clock.Step(time.Second)
	}
	pass()
	other := newLedger("other", clock.Now())
	clock.Step(time.Second)
	d.confirm(t.Context(), other, &Report{Done: true}) // asks
	pass()
	req.Force = NotForced
	pass()
	if len(api.asked) != 2 {
		t.Errorf("asked %q", api.asked)
	}
}
