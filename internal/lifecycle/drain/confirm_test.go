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

// server is an API server that lists Pods.
type server struct {
	Evictor
	pods    []corev1.Pod
	failure error
	asked   []string // the nodes of the lists, "" for all nodes
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

// confirming is a drainer whose drains are confirmed by an API server.
type confirming struct {
	*testing.T
	clock *testingclock.FakeClock
	api   *server
	d     *Drainer
}

func confirmWith(t *testing.T, api *server) *confirming {
	clock := testingclock.NewFakeClock(start)
	return &confirming{t, clock, api, New(Options{Evictor: api, Clock: clock})}
}

// begin begins drains of nodes, shortly before they are confirmed.
func (c *confirming) begin(nodes ...string) []*drainState {
	var begun []*drainState
	for _, node := range nodes {
		begun = append(begun, newDrainState(node, c.clock.Now()))
	}
	c.clock.Step(time.Second)
	return begun
}

// want confirms drains and checks whether they are done.
func (c *confirming) want(done bool, drains ...*drainState) {
	c.Helper()
	for _, l := range drains {
		made := Report{Done: true}
		c.d.confirm(c.Context(), l, &made)
		if made.Done != done {
			c.Errorf("drain of %s: done is %t, want %t", l.node, made.Done, done)
		}
		if made.Done != (made.Wait == 0) || !made.Done && len(made.Waiting)+len(made.Failed) == 0 {
			c.Errorf("the report does not show what the drain waits for: %+v", made)
		}
	}
}

// asked compares the lists since the last call: a node name each, or "" for all nodes.
func (c *confirming) asked(want ...string) {
	c.Helper()
	if diff := cmp.Diff(want, c.api.asked); diff != "" {
		c.Errorf("lists (-want +got):\n%s", diff)
	}
	c.api.asked = nil
}

// TestConfirm checks how often the API server is queried, and for which nodes.
func TestConfirm(t *testing.T) {
	c := confirmWith(t, &server{pods: podsOn("busy", 1)})
	drains := c.begin("a", "b", "busy")
	empty, busy := drains[:2], drains[2]
	c.want(true, empty...)
	c.want(true, empty...)
	c.want(false, busy)
	c.asked("")
	c.want(false, busy)
	c.api.pods = nil
	c.clock.Step(failureInterval)
	c.want(true, busy)
	c.want(true, newDrainState("c", c.clock.Now())) // cordoned later
	c.asked("", "")
}

func TestConfirm_WithoutResponse(t *testing.T) {
	c := confirmWith(t, &server{failure: errors.New("the API server is unavailable")})
	failing := c.begin("a")[0]
	for _, interval := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, failureInterval, failureInterval} {
		c.want(false, failing, failing)
		c.asked("")
		c.clock.Step(interval - 1)
		c.want(false, failing)
		c.asked()
		c.clock.Step(1)
	}
	c.api.failure = nil
	c.want(true, failing)
	c.asked("")
}

// TestConfirm_ManyPods checks that the Pods of each node are listed separately if one response cannot
// contain all Pods.
func TestConfirm_ManyPods(t *testing.T) {
	c := confirmWith(t, &server{pods: podsOn("other", clusterListLimit+1)})
	c.want(true, c.begin("a", "b")...)
	c.asked("", "a", "b")
}

// TestDrain_ForcedBeforeCordon checks that a list from before the cordon does not count.
func TestDrain_ForcedBeforeCordon(t *testing.T) {
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
	other := newDrainState("other", clock.Now())
	clock.Step(time.Second)
	d.confirm(t.Context(), other, &Report{Done: true}) // lists the Pods
	pass()
	req.Force = NotForced
	pass()
	if len(api.asked) != 2 {
		t.Errorf("lists %q", api.asked)
	}
}

// TestConfirm_OnceForADrain checks that a node that was empty is not listed again.
func TestConfirm_OnceForADrain(t *testing.T) {
	c := confirmWith(t, &server{})
	l := c.begin("a")
	c.want(true, l...)
	c.clock.Step(time.Hour)
	c.want(true, l...)
	c.asked("")
}

// TestConfirm_UnseenPods checks that pods that the cache does not show are no failure, and when they are listed again.
func TestConfirm_UnseenPods(t *testing.T) {
	c := confirmWith(t, &server{pods: podsOn("a", 1)})
	l := c.begin("a")[0]
	made := Report{Done: true}
	c.d.confirm(t.Context(), l, &made)
	if len(made.Failed) > 0 || len(made.Waiting) != 1 || made.Wait != failureInterval {
		t.Errorf("%+v", made)
	}
	c.clock.Step(failureInterval - 1)
	c.want(false, l)
	c.asked("")
	c.clock.Step(1)
	c.want(false, l)
	c.asked("")
}

// TestConfirm_PodsThatStay checks that pods that a drain does not evict do not count.
func TestConfirm_PodsThatStay(t *testing.T) {
	pods := podsOn("a", 1)
	owned("DaemonSet", "apps/v1")(&pods[0])
	c := confirmWith(t, &server{pods: pods})
	c.want(true, c.begin("a")...)
}

// TestConfirm_ClusterThatBecomesSmall checks that all pods are listed again at intervals.
func TestConfirm_ClusterThatBecomesSmall(t *testing.T) {
	c := confirmWith(t, &server{pods: podsOn("other", clusterListLimit+1)})
	c.want(true, c.begin("a")...)
	c.asked("", "a")
	c.api.pods = nil
	b, d := newDrainState("b", c.clock.Now()), newDrainState("d", c.clock.Now())
	c.clock.Step(clusterListInterval - 1)
	c.want(true, b)
	c.asked("b")
	c.clock.Step(1)
	c.want(true, d)
	c.asked("")
}
