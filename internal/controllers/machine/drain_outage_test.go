package machine

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
)

// lastForce is why the drainer was asked to force its last drain.
func (d *fakeDrainer) lastForce(t *testing.T) drain.Force {
	t.Helper()
	if len(d.requests) == 0 {
		t.Fatal("the drainer was not asked")
	}
	return d.requests[len(d.requests)-1].Force
}

// deleteNow deletes the Machine, and sets the clock to the fake API server's.
func (h *harness) deleteNow() {
	h.Helper()
	h.delete()
	h.Clock.SetTime(h.machine().DeletionTimestamp.Time)
}

// wantForcedAfter takes passes until shortly before a time is over, and then some after it: only then
// is the drain forced.
func (h *harness) wantForcedAfter(d *fakeDrainer, left time.Duration) {
	h.Helper()
	h.wait(left - time.Minute)
	if force := d.lastForce(h.T); force != drain.NotForced {
		h.Fatalf("forced a minute too early: %s", force)
	}
	h.wait(2 * time.Minute)
	if force := d.lastForce(h.T); force != drain.ForceDeadline {
		h.Fatalf("forced: %q after its time", force)
	}
}

// TestDrainClockStandsStillWhileNobodyCanDrain: after an outage, a drain has its whole time.
func TestDrainClockStandsStillWhileNobodyCanDrain(t *testing.T) {
	t.Attr("fault", "nobody can drain, since the manager or an API server is away, for three times as long as a drain may take")
	t.Attr("outcome", "each drain has its whole time afterwards")
	const away = 3 * DefaultDrainTimeout
	cases := map[string]func(h *harness) *fakeDrainer{
		"manager": func(h *harness) *fakeDrainer {
			h.Clock.Step(away)
			h.restart()
			d := h.draining(forPod("web"))
			h.Settle()
			return d
		},
		"target, at the start": func(h *harness) *fakeDrainer {
			h.restart()
			h.target.since = time.Time{}
			d := h.draining(forPod("web"))
			h.wait(away)
			if len(h.Driver.VMs()) != 1 || len(h.methods()) != 0 {
				h.Fatalf("%d VMs, calls %v: a node that nobody can see is not empty", len(h.Driver.VMs()), h.methods())
			}
			h.target.since = h.Clock.Now()
			h.Settle()
			return d
		},
		"target, later": func(h *harness) *fakeDrainer {
			down := true
			h.controller.Health.OutagePeriod = time.Minute
			h.restart()
			h.controller.Health.OutagePeriod = time.Minute
			h.controller.Target = targetView{h.target, awayClient{h.controller.Target.Client(), &down}}
			d := h.draining(forPod("web"))
			h.wait(away)
			if force := d.lastForce(h.T); force != drain.NotForced {
				h.Fatalf("forced while the target is away: %s", force)
			}
			down = false
			h.wait(time.Minute)
			return d
		},
	}
	for name, interrupt := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.running()
			h.draining(forPod("web"))
			h.deleteNow()
			h.Settle()
			h.Driver.ForgetCalls()
			d := interrupt(h)
			if force := d.lastForce(t); force != drain.NotForced {
				t.Fatalf("forced at once: %s", force)
			}
			h.wantForcedAfter(d, DefaultDrainTimeout-time.Minute)
		})
	}
}

// TestOnlyTimeForcesWithoutAnOutage: nothing else delays the deadline, and no budget applies.
func TestOnlyTimeForcesWithoutAnOutage(t *testing.T) {
	h := newHarness(t)
	names := h.drained(3)
	d := h.draining(forPod("web"))
	h.Key.Name = names[0] // no deletion precedes the manager, also if a second began meanwhile
	h.Clock.SetTime(h.machine().DeletionTimestamp.Time)
	h.passOver(names...)
	h.Clock.Step(DefaultDrainTimeout + time.Minute)
	for _, h.Key.Name = range names {
		h.Pass()
		if force := d.lastForce(t); force != drain.ForceDeadline {
			t.Errorf("%s is forced: %q", h.Key.Name, force)
		}
	}
}

// drained declares Machines of a pool that run, and deletes them.
func (h *harness) drained(count int) []string {
	h.Helper()
	var names []string
	for i := range count {
		h.Key.Name = machineName + string(rune('a'+i))
		names = append(names, h.Key.Name)
		h.addVM(h.Key.Name, "sim:///"+h.Key.Name)
		h.declare(func(m *v1alpha1.Machine) {
			m.Name, m.UID = h.Key.Name, types.UID(h.Key.Name)
			inPhase(v1alpha1.MachineRunning)(m)
			m.Labels[v1alpha1.LabelKeyName] = "a"
		})
		h.join(ready)
		h.Pass() // the manager has begun, in whatever second the API server notes the deletion
		h.deleteNow()
	}
	return names
}

// TestManagerThatRestartsForcesInTheEnd: restarts do not put a deadline off for ever, and what another
// process has put off is known to the next.
func TestManagerThatRestartsForcesInTheEnd(t *testing.T) {
	for name, every := range map[string]time.Duration{"often": 5 * time.Minute, "seldom": DefaultDrainTimeout - time.Minute} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.running()
			h.draining(forPod("web"))
			h.deleteNow()
			h.Settle()
			begin := h.Clock.Now()
			for h.Clock.Since(begin) < 3*DefaultDrainTimeout {
				h.restart()
				d := h.draining(forPod("web"))
				h.wait(every)
				if d.lastForce(t) == drain.ForceDeadline {
					t.Logf("forced after %v", h.Clock.Since(begin))
					return
				}
			}
			t.Error("it is never forced")
		})
	}
}

// TestDeadlineIsPutOffByOneWrite: it is recorded only when it matters, once, and a value that cannot be
// is ignored.
func TestDeadlineIsPutOffByOneWrite(t *testing.T) {
	h := newHarness(t)
	h.running()
	h.draining(forPod("web"))
	h.deleteNow()
	h.Settle()
	h.restart()
	h.draining(forPod("web"))
	h.Writes = nil
	h.wait(DefaultDrainTimeout - time.Minute)
	if n := len(h.TakeWrites()); n != 0 {
		t.Errorf("%d writes before the time was over", n)
	}
	h.Clock.Step(2 * DefaultDrainTimeout)
	h.restart()
	d := h.draining(forPod("web"))
	h.Settle()
	if n := count(h.TakeWrites(), "patch Machine"); n != 1 {
		t.Errorf("%d patches, want one", n)
	}
	if got := h.machine().Annotations[v1alpha1.AnnotationKeyDrainSince]; got != h.Clock.Now().UTC().Format(time.RFC3339) {
		t.Errorf("recorded %q at %v", got, h.Clock.Now())
	}
	for _, value := range []string{"soon", "2999-01-01T00:00:00Z"} {
		change(h, h.machine(), func(m *v1alpha1.Machine) {
			metav1.SetMetaDataAnnotation(&m.ObjectMeta, v1alpha1.AnnotationKeyDrainSince, value)
		})
		h.Settle()
		if force := d.lastForce(t); force != drain.NotForced {
			t.Errorf("%q: forced: %s", value, force)
		}
	}
	h.wantForcedAfter(d, DefaultDrainTimeout)
}

// TestForcedDrainsAfterAnOutageAreFew: as many as may be replaced at once, until their Machines are
// gone; what is asked for is not delayed.
func TestForcedDrainsAfterAnOutageAreFew(t *testing.T) {
	t.Attr("fault", "the manager is away for so long that all drains are overdue")
	t.Attr("outcome", "as many are forced at once as may be replaced at once")
	h := newHarness(t)
	names := h.drained(4)
	h.draining(forPod("web"))
	h.passOver(names...)
	h.Clock.Step(3 * DefaultDrainTimeout)
	h.restart()
	d := h.draining(forPod("web"))
	forced := func() (forced []string) {
		for range 2 {
			forced = nil
			for _, h.Key.Name = range names {
				if h.gone() {
					continue
				}
				if h.Pass(); d.lastForce(t) != drain.NotForced {
					forced = append(forced, h.Key.Name)
				}
			}
		}
		return forced
	}
	if got := forced(); len(got) != 0 {
		t.Fatalf("%v are forced at once", got)
	}
	h.Clock.Step(DefaultDrainTimeout)
	got := forced()
	if len(got) != 1 {
		t.Fatalf("%v are forced together, want one", got)
	}
	h.Key.Name = names[3]
	change(h, h.machine(), func(m *v1alpha1.Machine) {
		metav1.SetMetaDataLabel(&m.ObjectMeta, v1alpha1.LabelKeyForceDeletion, "True")
	})
	if h.Pass(); d.lastForce(t) != drain.ForceRequested {
		t.Error("a force that is asked for has to wait")
	}
	change(h, h.machine(), func(m *v1alpha1.Machine) { delete(m.Labels, v1alpha1.LabelKeyForceDeletion) })

	first := got[0]
	d.reports = []drain.Report{emptied}
	h.Key.Name = first
	h.Settle()
	if !h.gone() {
		t.Fatal("the forced one stays")
	}
	h.Pass() // as its event brings
	d.reports = []drain.Report{forPod("web")}
	if got := forced(); len(got) != 1 || got[0] == first {
		t.Errorf("%v are forced when the first is gone, want another one", got)
	}
}

// TestOldConditionsForceNoDrain: what was known of a node before an outage, or is known of one that
// nobody can see, forces nothing.
func TestOldConditionsForceNoDrain(t *testing.T) {
	h := newHarness(t)
	h.running()
	c := notReady
	c.LastTransitionTime = metav1.NewTime(h.Clock.Now())
	h.join(c)
	h.Settle()
	h.draining(forPod("web"))
	h.deleteNow()
	h.Settle()
	h.Clock.Step(time.Hour)
	h.restart()
	since := h.target.since
	h.target.since = time.Time{}
	d := h.draining(forPod("web"))
	h.Settle()
	if len(h.methods()) != 0 || len(d.requests) != 0 {
		t.Fatalf("calls %v: the VM goes with its pods", h.methods())
	}
	h.target.since = since
	h.Clock.Step(time.Hour)
	h.restart()
	d = h.draining(forPod("web"))
	h.Settle()
	if force := d.lastForce(t); force != drain.NotForced {
		t.Fatalf("forced at once: %s", force)
	}
	h.wait(4 * time.Minute)
	if force := d.lastForce(t); force != drain.NotForced {
		t.Fatalf("forced too early: %s", force)
	}
	h.wait(2 * time.Minute)
	if force := d.lastForce(t); force != drain.ForceNotReady {
		t.Errorf("forced: %q after five minutes", force)
	}
}
