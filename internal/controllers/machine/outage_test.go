package machine

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	testingclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// TestLookout: which failures are outages, and how often is asked.
func TestLookout(t *testing.T) {
	const (
		period  = time.Minute
		timeout = 30 * time.Second
	)
	begin := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	// step is what the two servers answer when they are asked after some time.
	type step struct {
		after           time.Duration
		control, target bool
	}
	type seen struct {
		well bool
		back time.Duration // since begin; 0 if nobody was away
	}
	cases := map[string]struct {
		steps []step
		want  seen
		asked int
	}{
		"all answer":                     {[]step{{0, true, true}}, seen{well: true}, 1},
		"not asked within a period":      {[]step{{0, true, true}, {59 * time.Second, false, false}}, seen{well: true}, 1},
		"asked after a period":           {[]step{{0, true, true}, {period, true, true}}, seen{well: true}, 2},
		"control fails":                  {[]step{{0, false, true}}, seen{}, 1},
		"target fails":                   {[]step{{0, true, false}}, seen{}, 1},
		"both fail":                      {[]step{{0, false, false}}, seen{}, 1},
		"one that fails is asked sooner": {[]step{{0, true, false}, {6 * time.Second, true, true}}, seen{well: true}, 2},
		"back before the timeout":        {[]step{{0, true, false}, {29 * time.Second, true, true}}, seen{well: true}, 2},
		"back after the timeout":         {[]step{{0, true, false}, {30 * time.Second, true, true}}, seen{well: true, back: 30 * time.Second}, 2},
		"control back after it":          {[]step{{0, false, true}, {time.Hour, true, true}}, seen{well: true, back: time.Hour}, 2},
		"one back, the other not":        {[]step{{0, false, false}, {time.Hour, true, false}}, seen{back: time.Hour}, 2},
		"the later one counts": {
			[]step{{0, false, false}, {time.Hour, true, false}, {time.Hour, true, true}}, seen{well: true, back: 2 * time.Hour}, 3,
		},
		"away a second time": {
			[]step{{0, true, false}, {time.Hour, true, true}, {time.Hour, true, false}, {time.Hour, true, true}}, seen{well: true, back: 3 * time.Hour}, 4,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			clock := testingclock.NewFakeClock(begin)
			var now step
			asked := 0
			answer := func(well *bool) func(context.Context) error {
				return func(context.Context) error {
					asked++
					if *well {
						return nil
					}
					return errDown
				}
			}
			l := &lookout{clock: clock, period: period, timeout: timeout, servers: []server{{ask: answer(&now.control)}, {ask: answer(&now.target)}}}
			var last report
			for _, now = range tc.steps {
				clock.Step(now.after)
				last = l.look(t.Context())
			}
			got := seen{well: last.well}
			if !last.back.IsZero() {
				got.back = last.back.Sub(begin)
			}
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(seen{})); diff != "" {
				t.Errorf("seen (-want +got):\n%s", diff)
			}
			if asked != 2*tc.asked {
				t.Errorf("%d questions, want %d to each server", asked, tc.asked)
			}
			if last.again <= 0 || last.again > period || !last.well && last.again > timeout {
				t.Errorf("to be looked at again after %v", last.again)
			}
		})
	}
}

// TestLookoutHoldsNobodyUp: while one pass waits for answers, others go on, and take
// nothing for granted.
func TestLookoutHoldsNobodyUp(t *testing.T) {
	clock := testingclock.NewFakeClock(time.Now())
	asked, answer := make(chan struct{}), make(chan struct{})
	l := &lookout{clock: clock, period: time.Minute, timeout: time.Second, servers: []server{{ask: func(context.Context) error {
		close(asked)
		<-answer
		return nil
	}}}}
	done := make(chan report)
	go func() { done <- l.look(context.Background()) }()
	<-asked
	if l.look(t.Context()).well {
		t.Error("a server is well that has not answered yet")
	}
	close(answer)
	if got := <-done; !got.well {
		t.Error("an answer is not taken")
	}
}

// TestLookoutConfirmsNothingMeanwhile: what is being asked for is not known, whatever the
// last answer was.
func TestLookoutConfirmsNothingMeanwhile(t *testing.T) {
	clock := testingclock.NewFakeClock(time.Now())
	asked, answer := make(chan struct{}), make(chan struct{})
	first := true
	l := &lookout{clock: clock, period: time.Minute, timeout: time.Second, servers: []server{{ask: func(context.Context) error {
		if first {
			first = false
			return nil
		}
		close(asked)
		<-answer
		return errAway
	}}}}
	if !l.look(t.Context()).well {
		t.Fatal("a server that answers is not well")
	}
	clock.Step(time.Minute)
	done := make(chan report)
	go func() { done <- l.look(context.Background()) }()
	<-asked
	if got := l.confirm(t.Context()); got.well || got.again != unanswered {
		t.Errorf("well: %v, by an answer of a minute ago; to be looked at again after %v", got.well, got.again)
	}
	close(answer)
	if got := <-done; got.well {
		t.Error("a server is well that does not answer")
	}
}

// TestLookoutOfAnEndingProcess: that a process ends is no outage.
func TestLookoutOfAnEndingProcess(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	l := &lookout{clock: testingclock.NewFakeClock(time.Now()), period: time.Minute, timeout: time.Second, servers: []server{{ask: func(ctx context.Context) error { return ctx.Err() }}}}
	if l.look(ctx); !l.servers[0].failing.IsZero() {
		t.Error("it is taken for one")
	}
}

// outage is a client whose unstructured reads, which no cache answers, fail when told to.
type outage struct {
	client.Client
	down *bool
}

var errAway = errors.New("connection refused")

func (o outage) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	if _, live := object.(*unstructured.Unstructured); live && *o.down {
		return errAway
	}
	return o.Client.Get(ctx, key, object, options...)
}

// TestNobodyFailsForAnOutage: with either API server away, or just back, no Machine is
// declared Failed, whatever its timeout; once both have been there for the timeout, it is.
func TestNobodyFailsForAnOutage(t *testing.T) {
	const away = 3 * creationTimeout // which is the longer of the two
	phases := map[v1alpha1.MachinePhase]time.Duration{v1alpha1.MachinePending: creationTimeout, v1alpha1.MachineUnknown: healthTimeout}
	for phase, timeout := range phases {
		for name, down := range map[string][2]bool{
			"control": {true, false}, "target": {false, true}, "both": {true, true}, "neither": {false, false},
		} {
			for begun, before := range map[string]time.Duration{"at once": 0, "half-way": timeout / 2, "at the last moment": timeout - time.Second} {
				t.Run(string(phase)+", "+name+" away "+begun, func(t *testing.T) {
					w := newWorld(t)
					var control, target bool
					w.controller.Health.OutagePeriod = time.Minute
					w.controller.Client = outage{w.controller.Client, &control}
					w.controller.Target = targetView{w.target, outage{w.controller.Target.Client(), &target}}
					w.declare(inPhase(phase))
					w.join(notReady)
					w.wait(before)
					control, target = down[0], down[1]
					w.wait(away)
					got := w.machine().Status.CurrentStatus.Phase
					if name == "neither" {
						if got != v1alpha1.MachineFailed {
							t.Errorf("phase %q long after the timeout", got)
						}
						return
					}
					if got != phase {
						t.Fatalf("phase %q while %s was away", got, name)
					}
					control, target = false, false
					w.wait(timeout - time.Minute)
					if got := w.machine().Status.CurrentStatus.Phase; got != phase {
						t.Errorf("phase %q just after %s came back", got, name)
					}
					w.wait(2 * time.Minute)
					if got := w.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineFailed {
						t.Errorf("phase %q for good", got)
					}
				})
			}
		}
	}
}

// wait lets time pass, with the passes that the Machine asks for in it, and those that ends
// of calls and its own writes bring. Passes that fail are tried again after a second.
func (w *world) wait(d time.Duration) {
	w.Helper()
	end := w.clock.Now().Add(d)
	for range 20_000 {
		before := len(w.writes)
		result, err := w.controller.Reconcile(w.Context(), w.request())
		after := result.RequeueAfter
		switch called := w.call(); {
		case err != nil:
			after = time.Second
		case called || len(w.writes) != before:
			continue
		}
		if left := end.Sub(w.clock.Now()); after <= 0 || after >= left {
			w.clock.Step(max(left, 0))
			_, _ = w.controller.Reconcile(w.Context(), w.request()) // an error comes again
			return
		}
		w.clock.Step(after)
	}
	w.Fatal("the Machine is looked at without end")
}

// TestHealthTimeout: whose word counts, and what becomes of the Machine.
func TestHealthTimeout(t *testing.T) {
	own := func(d time.Duration) func(*v1alpha1.Machine) {
		return func(m *v1alpha1.Machine) {
			m.Spec.MachineConfiguration = &v1alpha1.MachineConfiguration{MachineHealthTimeout: &metav1.Duration{Duration: d}}
		}
	}
	cases := map[string]struct {
		machine func(*v1alpha1.Machine)
		node    bool
		after   time.Duration
		want    v1alpha1.MachinePhase
	}{
		"unhealthy, a second early":   {node: true, after: healthTimeout - time.Second, want: v1alpha1.MachineUnknown},
		"unhealthy":                   {node: true, after: healthTimeout, want: v1alpha1.MachineFailed},
		"absent, a second early":      {after: healthTimeout - time.Second, want: v1alpha1.MachineUnknown},
		"absent":                      {after: healthTimeout, want: v1alpha1.MachineFailed},
		"own word, a second early":    {machine: own(time.Minute), node: true, after: time.Minute - time.Second, want: v1alpha1.MachineUnknown},
		"own word":                    {machine: own(time.Minute), node: true, after: time.Minute, want: v1alpha1.MachineFailed},
		"own word is longer":          {machine: own(time.Hour), node: true, after: time.Hour - time.Second, want: v1alpha1.MachineUnknown},
		"own word is nonsense":        {machine: own(-time.Hour), node: true, after: healthTimeout - time.Second, want: v1alpha1.MachineUnknown},
		"own word outlives everybody": {machine: own(1<<63 - 1), node: true, after: 100_000 * time.Hour, want: v1alpha1.MachineUnknown},
		"switched off":                {machine: disabled(true), node: true, after: 1000 * time.Hour, want: v1alpha1.MachineUnknown},
		"switched off, absent":        {machine: disabled(true), after: 1000 * time.Hour, want: v1alpha1.MachineUnknown},
		"expressly not switched off":  {machine: disabled(false), node: true, after: healthTimeout, want: v1alpha1.MachineFailed},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.declare(inPhase(v1alpha1.MachineUnknown), func(m *v1alpha1.Machine) {
				if tc.machine != nil {
					tc.machine(m)
				}
			})
			if tc.node {
				w.join(notReady)
			}
			w.settle()
			w.settleAfter(tc.after)
			got := w.machine()
			if got.Status.CurrentStatus.Phase != tc.want {
				t.Errorf("phase %q, want %q", got.Status.CurrentStatus.Phase, tc.want)
			}
			if tc.want != v1alpha1.MachineFailed {
				return
			}
			wantStatus(t, got, want4{v1alpha1.MachineFailed, v1alpha1.MachineOperationHealthCheck, v1alpha1.MachineStateFailed, "Updating machine phase to Failed"})
			w.settleAfter(time.Hour)
			if events := w.told(); len(events) != 1 {
				t.Errorf("events %q, want one", events)
			}
			w.join(ready)
			w.settle()
			wantStatus(t, w.machine(), rejoined)
		})
	}
}

func disabled(off bool) func(*v1alpha1.Machine) {
	return func(m *v1alpha1.Machine) {
		m.Spec.MachineConfiguration = &v1alpha1.MachineConfiguration{DisableHealthTimeout: ptr.To(off)}
	}
}

// TestHealthClockDoesNotRunAhead: a restart, and a target that was not seen, begin the
// timeout anew.
func TestHealthClockDoesNotRunAhead(t *testing.T) {
	for name, interrupt := range map[string]func(w *world){
		"restart": func(w *world) { w.restart(w.driver) },
		"target":  func(w *world) { w.target.since = w.clock.Now() },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.declare(inPhase(v1alpha1.MachineUnknown))
			w.join(notReady)
			w.settle()
			w.clock.Step(healthTimeout)
			interrupt(w)
			w.settle()
			w.settleAfter(healthTimeout - time.Second)
			if got := w.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineUnknown {
				t.Errorf("phase %q too early", got)
			}
			w.settleAfter(time.Second)
			if got := w.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineFailed {
				t.Errorf("phase %q at the end", got)
			}
		})
	}
}

// TestCacheLagsBehindTheNode: before a Machine is given up, the API server itself is asked
// how its node is.
func TestCacheLagsBehindTheNode(t *testing.T) {
	for phase, timeout := range map[v1alpha1.MachinePhase]time.Duration{v1alpha1.MachinePending: creationTimeout, v1alpha1.MachineUnknown: healthTimeout} {
		t.Run(string(phase), func(t *testing.T) {
			w := newWorld(t)
			w.declare(inPhase(phase))
			w.join(notReady)
			w.settle()
			stale := w.node()
			w.join(ready)
			w.controller.Target = targetView{w.target, staleNodes{w.controller.Target.Client(), stale}}
			w.clock.Step(timeout)
			if got := w.pass().RequeueAfter; got <= 0 {
				t.Error("nothing brings the next pass")
			}
			if got := w.machine().Status.CurrentStatus.Phase; got != phase {
				t.Errorf("phase %q for a cache that lags behind", got)
			}
		})
	}
}

// staleNodes shows a node as it was, where the cache is asked.
type staleNodes struct {
	client.Client
	node *corev1.Node
}

func (r staleNodes) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	if node, cached := object.(*corev1.Node); cached {
		r.node.DeepCopyInto(node)
		return nil
	}
	return r.Client.Get(ctx, key, object, options...)
}
