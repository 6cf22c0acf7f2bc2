package machine

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// awayClient is a client whose unstructured reads fail while it is away. Such reads bypass the cache.
type awayClient struct {
	client.Client
	down *bool
}

var errAway = errors.New("connection refused")

func (o awayClient) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	if _, live := object.(*unstructured.Unstructured); live && *o.down {
		return errAway
	}
	return o.Client.Get(ctx, key, object, options...)
}

// TestMachine_DoesNotFailDuringOutage checks that no Machine becomes Failed during or right after an outage of either API
// server. It becomes Failed after both have been available for the timeout.
func TestMachine_DoesNotFailDuringOutage(t *testing.T) {
	t.Attr("fault", "One or both API servers are unavailable for three times the creation timeout")
	t.Attr("outcome", "A Machine becomes Failed only after its full timeout has passed since the outage")
	const away = 3 * creationTimeout // the longer one of the two timeouts
	phases := map[v1alpha1.MachinePhase]time.Duration{v1alpha1.MachinePending: creationTimeout, v1alpha1.MachineUnknown: healthTimeout}
	for phase, timeout := range phases {
		for name, down := range map[string][2]bool{
			"control": {true, false}, "target": {false, true}, "both": {true, true}, "neither": {false, false},
		} {
			for begun, before := range map[string]time.Duration{"immediately": 0, "half-way": timeout / 2, "just before the timeout": timeout - time.Second} {
				t.Run(string(phase)+", "+name+" away "+begun, func(t *testing.T) {
					h := newHarness(t)
					var control, target bool
					h.controller.Health.OutagePeriod = time.Minute
					h.useClient(awayClient{h.controller.Client, &control})
					h.controller.Target = targetView{h.target, awayClient{h.controller.Target.Client(), &target}}
					h.declare(inPhase(phase))
					h.join(notReady)
					h.wait(before)
					control, target = down[0], down[1]
					h.wait(away)
					got := h.machine().Status.CurrentStatus.Phase
					if name == "neither" {
						if got != v1alpha1.MachineFailed {
							t.Errorf("phase %q long after the timeout", got)
						}
						return
					}
					if got != phase {
						t.Fatalf("phase %q while %s was unavailable", got, name)
					}
					control, target = false, false
					h.wait(timeout - time.Minute)
					if got := h.machine().Status.CurrentStatus.Phase; got != phase {
						t.Errorf("phase %q just after the outage of %s", got, name)
					}
					h.wait(2 * time.Minute)
					if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineFailed {
						t.Errorf("phase %q after the timeout", got)
					}
				})
			}
		}
	}
}

// wait advances the clock, and runs the passes that the Machine schedules and that the completion of calls and the
// controller's own writes trigger. A pass that fails is retried after a second.
func (h *harness) wait(d time.Duration) {
	h.Helper()
	end := h.Clock.Now().Add(d)
	for range 20_000 {
		before := len(h.Writes)
		result, err := h.controller.Reconcile(h.Context(), h.Request())
		after := result.RequeueAfter
		switch called := h.Call(); {
		case err != nil:
			after = time.Second
		case called || len(h.Writes) != before:
			continue
		}
		if left := end.Sub(h.Clock.Now()); after <= 0 || after >= left {
			h.Clock.Step(max(left, 0))
			_, _ = h.controller.Reconcile(h.Context(), h.Request()) // a failed pass is retried
			return
		}
		h.Clock.Step(after)
	}
	h.Fatal("the passes do not settle")
}

// TestMachine_HealthTimeoutPrecedence checks which setting takes precedence, and when the Machine becomes Failed.
func TestMachine_HealthTimeoutPrecedence(t *testing.T) {
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
		"unhealthy, second before":   {node: true, after: healthTimeout - time.Second, want: v1alpha1.MachineUnknown},
		"unhealthy":                  {node: true, after: healthTimeout, want: v1alpha1.MachineFailed},
		"absent, second before":      {after: healthTimeout - time.Second, want: v1alpha1.MachineUnknown},
		"absent":                     {after: healthTimeout, want: v1alpha1.MachineFailed},
		"own timeout, second before": {machine: own(time.Minute), node: true, after: time.Minute - time.Second, want: v1alpha1.MachineUnknown},
		"own timeout":                {machine: own(time.Minute), node: true, after: time.Minute, want: v1alpha1.MachineFailed},
		"own timeout is longer":      {machine: own(time.Hour), node: true, after: time.Hour - time.Second, want: v1alpha1.MachineUnknown},
		"own timeout is invalid":     {machine: own(-time.Hour), node: true, after: healthTimeout - time.Second, want: v1alpha1.MachineUnknown},
		"own timeout is maximal":     {machine: own(1<<63 - 1), node: true, after: 100_000 * time.Hour, want: v1alpha1.MachineUnknown},
		"switched off":               {machine: disabled(true), node: true, after: 1000 * time.Hour, want: v1alpha1.MachineUnknown},
		"switched off, absent":       {machine: disabled(true), after: 1000 * time.Hour, want: v1alpha1.MachineUnknown},
		"explicitly switched on":     {machine: disabled(false), node: true, after: healthTimeout, want: v1alpha1.MachineFailed},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.declare(inPhase(v1alpha1.MachineUnknown), func(m *v1alpha1.Machine) {
				if tc.machine != nil {
					tc.machine(m)
				}
			})
			if tc.node {
				h.join(notReady)
			}
			h.Settle()
			h.SettleAfter(tc.after)
			got := h.machine()
			if got.Status.CurrentStatus.Phase != tc.want {
				t.Errorf("phase %q, want %q", got.Status.CurrentStatus.Phase, tc.want)
			}
			if tc.want != v1alpha1.MachineFailed {
				return
			}
			wantStatus(t, got, statusFields{v1alpha1.MachineFailed, v1alpha1.MachineOperationHealthCheck, v1alpha1.MachineStateFailed, "Updating machine phase to Failed"})
			h.SettleAfter(time.Hour)
			if events := h.takeEvents(); len(events) != 1 {
				t.Errorf("events %q, want one", events)
			}
			h.join(ready)
			h.Settle()
			wantStatus(t, h.machine(), rejoined)
		})
	}
}

func disabled(off bool) func(*v1alpha1.Machine) {
	return func(m *v1alpha1.Machine) {
		m.Spec.MachineConfiguration = &v1alpha1.MachineConfiguration{DisableHealthTimeout: ptr.To(off)}
	}
}

// TestMachine_HealthTimeoutRestartsAfterInterruption checks that the health timeout restarts after a restart, and after the target
// cluster was unavailable.
func TestMachine_HealthTimeoutRestartsAfterInterruption(t *testing.T) {
	for name, interrupt := range map[string]func(h *harness){
		"restart": func(h *harness) { h.restart() },
		"target":  func(h *harness) { h.target.since = h.Clock.Now() },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.declare(inPhase(v1alpha1.MachineUnknown))
			h.join(notReady)
			h.Settle()
			h.Clock.Step(healthTimeout)
			interrupt(h)
			h.Settle()
			h.SettleAfter(healthTimeout - time.Second)
			if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineUnknown {
				t.Errorf("phase %q before the timeout", got)
			}
			h.SettleAfter(time.Second)
			if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineFailed {
				t.Errorf("phase %q after the timeout", got)
			}
		})
	}
}

// TestMachine_OutageIsDetectedDespiteStaleCache checks that an outage is detected even if it begins before the cache contains our
// last write.
func TestMachine_OutageIsDetectedDespiteStaleCache(t *testing.T) {
	h := newHarness(t)
	var down bool
	h.controller.Health.OutagePeriod = time.Minute
	h.useClient(awayClient{h.controller.Client, &down})
	h.controller.Target = targetView{h.target, awayClient{h.controller.Target.Client(), &down}}
	h.declare(inPhase(v1alpha1.MachinePending))
	h.join(notReady)
	h.wait(time.Minute)
	change(h, h.machine(), func(m *v1alpha1.Machine) { m.Finalizers = nil })
	stale := h.machine()
	h.Pass() // writes the finalizer
	fresh := h.controller.Client
	h.useClient(staleReader{fresh, stale})
	down = true
	h.wait(3 * creationTimeout)
	h.useClient(fresh)
	down = false
	h.wait(creationTimeout - time.Minute)
	if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachinePending {
		t.Errorf("phase %q right after the outage", got)
	}
	h.wait(2 * time.Minute)
	if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineFailed {
		t.Errorf("phase %q after the timeout", got)
	}
}

// TestMachine_LiveNodePreventsFailure checks that the node is read from the API server before a Machine becomes Failed.
func TestMachine_LiveNodePreventsFailure(t *testing.T) {
	for phase, timeout := range map[v1alpha1.MachinePhase]time.Duration{v1alpha1.MachinePending: creationTimeout, v1alpha1.MachineUnknown: healthTimeout} {
		t.Run(string(phase), func(t *testing.T) {
			h := newHarness(t)
			h.declare(inPhase(phase))
			h.join(notReady)
			h.Settle()
			stale := h.node()
			h.join(ready)
			h.controller.Target = targetView{h.target, staleNodes{h.controller.Target.Client(), stale}}
			h.Clock.Step(timeout)
			if got := h.Pass().RequeueAfter; got <= 0 {
				t.Error("no next pass is scheduled")
			}
			if got := h.machine().Status.CurrentStatus.Phase; got != phase {
				t.Errorf("phase %q because of a stale cache", got)
			}
		})
	}
}

// staleNodes returns an old version of a node for reads from the cache.
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
