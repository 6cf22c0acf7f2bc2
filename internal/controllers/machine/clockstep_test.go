package machine

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
)

// steadyClock advances with real time. Unlike the wall clock, it ignores steps.
type steadyClock struct {
	wall  *testingclock.FakeClock
	steps time.Duration
}

var _ clock.PassiveClock = &steadyClock{}

func (c *steadyClock) Now() time.Time { return c.wall.Now().Add(-c.steps) }

func (c *steadyClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// set steps the host's clock. No real time passes.
func (c *steadyClock) set(by time.Duration) {
	c.steps += by
	c.wall.Step(by)
}

// steady gives the controller a steady clock. Call it before the first pass.
func (h *harness) steady() *steadyClock {
	c := &steadyClock{wall: h.Clock}
	h.controller.Steady = c
	return c
}

// jumps contains the steps of the clock. If the clock is set back by two hours, timeouts that began before the
// step expire late, each relative to its own beginning. So no more drains are forced together than without the
// step.
var jumps = map[string]struct {
	by, late time.Duration
	forced   int
}{"forward": {by: 2 * time.Hour, forced: 1}, "back": {by: -2 * time.Hour, late: 2 * time.Hour, forced: 3}}

// TestMachine_ClockStepDoesNotShortenTimeouts checks that a step of the manager's clock does not shorten the timeouts of a
// Machine.
func TestMachine_ClockStepDoesNotShortenTimeouts(t *testing.T) {
	phases := map[v1alpha1.MachinePhase]time.Duration{v1alpha1.MachinePending: creationTimeout, v1alpha1.MachineUnknown: healthTimeout}
	for phase, timeout := range phases {
		for name, jump := range jumps {
			t.Run(string(phase)+", "+name, func(t *testing.T) {
				t.Attr("fault", "The clock of the manager's host steps "+name+" by two hours while a Machine is "+string(phase))
				h := newHarness(t)
				clock := h.steady()
				h.declare(inPhase(phase))
				h.join(notReady)
				h.wait(timeout / 2)
				clock.set(jump.by)
				h.wait(timeout - time.Minute)
				if got := h.machine().Status.CurrentStatus.Phase; got != phase {
					t.Fatalf("phase %q before the timeout", got)
				}
				h.wait(jump.late + 2*time.Minute)
				if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineFailed {
					t.Errorf("phase %q after the timeout", got)
				}
				t.Attr("outcome", "The Machine becomes Failed only after its full timeout has passed since the step")
			})
		}
	}
}

// TestMachine_ClockStepDoesNotForceDrain checks that a step of the manager's clock does not shorten the drain
// timeout. If the timeouts of several drains restart together, the number of drains that are forced at the same
// time is limited.
func TestMachine_ClockStepDoesNotForceDrain(t *testing.T) {
	for name, jump := range jumps {
		t.Run(name, func(t *testing.T) {
			t.Attr("fault", "The clock of the manager's host steps "+name+" by two hours during a drain")
			h := newHarness(t)
			clock := h.steady()
			names := h.drained(3)
			d := h.draining(forPod("web"))
			h.passOver(names...)
			h.Clock.Step(time.Hour)
			h.passOver(names...)
			clock.set(jump.by)
			h.Key.Name = names[0]
			h.wait(DefaultDrainTimeout - time.Minute)
			if force := d.lastForce(t); force != drain.NotForced {
				t.Fatalf("forced before the timeout: %s", force)
			}
			h.Clock.Step(jump.late + 2*time.Minute)
			forced := 0
			for _, h.Key.Name = range names {
				if h.Pass(); d.lastForce(t) == drain.ForceDeadline {
					forced++
				}
			}
			if forced != jump.forced {
				t.Errorf("%d of %d drains are forced together, want %d", forced, len(names), jump.forced)
			}
			t.Attr("outcome", fmt.Sprintf("Drains are forced only after the full drain timeout has passed since the step (forced at the same time: %d of %d)", forced, len(names)))
		})
	}
}

// TestMachine_FutureTransitionTimeIsCorrected checks that a phase with a begin in the future begins when a pass sees it, so that the timeout
// is neither shorter nor longer. A user or the clock of another host may have set such a time.
func TestMachine_FutureTransitionTimeIsCorrected(t *testing.T) {
	for name, ahead := range map[string]time.Duration{"two hours": 2 * time.Hour, "a century": 100 * 365 * 24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.declare(inPhase(v1alpha1.MachineUnknown), func(machine *v1alpha1.Machine) {
				machine.Status.CurrentStatus.LastUpdateTime = metav1.NewTime(h.Clock.Now().Add(ahead))
			})
			h.join(notReady)
			h.wait(healthTimeout - time.Minute)
			if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineUnknown {
				t.Fatalf("phase %q before the timeout", got)
			}
			h.wait(2 * time.Minute)
			if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineFailed {
				t.Errorf("phase %q after the timeout", got)
			}
		})
	}
}
