package machine

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
)

// lastForce returns why the last request forced the drain.
func (d *fakeDrainer) lastForce(t *testing.T) drain.Force {
	t.Helper()
	if len(d.requests) == 0 {
		t.Fatal("the drainer was not called")
	}
	return d.requests[len(d.requests)-1].Force
}

// deleteNow deletes the Machine and sets the clock to the time of the fake API server.
func (h *harness) deleteNow() {
	h.Helper()
	h.delete()
	h.Clock.SetTime(h.machine().DeletionTimestamp.Time)
}

// wantForcedAfter checks that the drain is forced after the time left, and not a minute before.
func (h *harness) wantForcedAfter(d *fakeDrainer, left time.Duration) {
	h.Helper()
	h.wait(left - time.Minute)
	if force := d.lastForce(h.T); force != drain.NotForced {
		h.Fatalf("forced before the timeout: %s", force)
	}
	h.wait(2 * time.Minute)
	if force := d.lastForce(h.T); force != drain.ForceDeadline {
		h.Fatalf("force %q after the timeout", force)
	}
}

// TestMachine_DrainTimeoutRestartsAfterOutage checks that the drain timeout restarts after an outage.
func TestMachine_DrainTimeoutRestartsAfterOutage(t *testing.T) {
	t.Attr("fault", "The manager or an API server is unavailable for three times the drain timeout")
	t.Attr("outcome", "The drain timeout restarts after the outage")
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
				h.Fatalf("%d VMs, calls %v: a node that cannot be read may have Pods", len(h.Driver.VMs()), h.methods())
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
				h.Fatalf("forced while the target cluster is unavailable: %s", force)
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
				t.Fatalf("forced immediately: %s", force)
			}
			h.wantForcedAfter(d, DefaultDrainTimeout-time.Minute)
		})
	}
}

// TestMachine_DrainIsForcedOnTimeWithoutOutage checks that without an outage, the drain timeout is neither extended nor
// subject to the limit on forced drains.
func TestMachine_DrainIsForcedOnTimeWithoutOutage(t *testing.T) {
	h := newHarness(t)
	names := h.drained(3)
	d := h.draining(forPod("web"))
	h.Key.Name = names[0] // the deletion must not be earlier than the manager's start, even by a second
	h.Clock.SetTime(h.machine().DeletionTimestamp.Time)
	h.passOver(names...)
	h.Clock.Step(DefaultDrainTimeout + time.Minute)
	for _, h.Key.Name = range names {
		h.Pass()
		if force := d.lastForce(t); force != drain.ForceDeadline {
			t.Errorf("%s: force %q", h.Key.Name, force)
		}
	}
}

// drained creates Running Machines of a pool and deletes them.
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
		h.Pass() // the manager starts before the time that the API server sets on the deletion
		h.deleteNow()
	}
	return names
}

// TestMachine_DrainIsForcedDespiteRestarts checks that restarts do not postpone the drain timeout forever, and that a
// process takes the postponement by a previous one into account.
func TestMachine_DrainIsForcedDespiteRestarts(t *testing.T) {
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
			t.Error("the drain was never forced")
		})
	}
}

// TestMachine_DrainRestartIsStoredOnce checks that a postponed deadline is stored once, only when necessary, and that
// invalid values are ignored.
func TestMachine_DrainRestartIsStoredOnce(t *testing.T) {
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
		t.Errorf("%d writes before the deadline", n)
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
			t.Errorf("%q: force %s", value, force)
		}
	}
	h.wantForcedAfter(d, DefaultDrainTimeout)
}

// TestMachine_ForcedDrainsAreLimitedAfterOutage checks that after an outage, the number of drains that are forced at the
// same time is limited like replacements, and that drains that a user forces are not delayed.
func TestMachine_ForcedDrainsAreLimitedAfterOutage(t *testing.T) {
	t.Attr("fault", "The manager is unavailable until all drain timeouts have expired")
	t.Attr("outcome", "The number of concurrent forced drains is limited in the same way as replacements")
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
		t.Fatalf("forced immediately: %v", got)
	}
	h.Clock.Step(DefaultDrainTimeout)
	got := forced()
	if len(got) != 1 {
		t.Fatalf("forced together: %v, want one", got)
	}
	h.Key.Name = names[3]
	change(h, h.machine(), func(m *v1alpha1.Machine) {
		metav1.SetMetaDataLabel(&m.ObjectMeta, v1alpha1.LabelKeyForceDeletion, "True")
	})
	if h.Pass(); d.lastForce(t) != drain.ForceRequested {
		t.Error("a drain that a user forces is delayed")
	}
	change(h, h.machine(), func(m *v1alpha1.Machine) { delete(m.Labels, v1alpha1.LabelKeyForceDeletion) })

	first := got[0]
	d.reports = []drain.Report{emptied}
	h.Key.Name = first
	h.Settle()
	if !h.gone() {
		t.Fatal("the Machine with the forced drain was not deleted")
	}
	h.Pass() // its event triggers this pass
	d.reports = []drain.Report{forPod("web")}
	if got := forced(); len(got) != 1 || got[0] == first {
		t.Errorf("forced after the first one was deleted: %v, want one more", got)
	}
}

// TestMachine_OldConditionsDoNotForceDrain checks that a drain is not forced because of node conditions from before an
// outage, or while the node cannot be read.
func TestMachine_OldConditionsDoNotForceDrain(t *testing.T) {
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
		t.Fatalf("calls %v: the VM is deleted before its node is drained", h.methods())
	}
	h.target.since = since
	h.Clock.Step(time.Hour)
	h.restart()
	d = h.draining(forPod("web"))
	h.Settle()
	if force := d.lastForce(t); force != drain.NotForced {
		t.Fatalf("forced immediately: %s", force)
	}
	h.wait(4 * time.Minute)
	if force := d.lastForce(t); force != drain.NotForced {
		t.Fatalf("forced too early: %s", force)
	}
	h.wait(2 * time.Minute)
	if force := d.lastForce(t); force != drain.ForceNotReady {
		t.Errorf("force %q after five minutes", force)
	}
}
