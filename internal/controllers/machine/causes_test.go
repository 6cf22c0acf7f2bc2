package machine

import (
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
)

// TestCausesOfEvents: programs read in the annotations why an event was sent, and at which step.
func TestCausesOfEvents(t *testing.T) {
	cases := map[string]struct {
		given func(w *world)
		want  []string
	}{
		"class is missing": {
			func(w *world) {
				change(w, newClass(w.namespace), func(c *v1alpha1.MachineClass) { c.Finalizers = nil })
				w.remove(newClass(w.namespace))
				w.declare()
			},
			[]string{reasonFailedCreate, "cause:" + v1alpha1.CauseInvalidClassInputs},
		},
		"driver fails": {
			func(w *world) { w.driver.fails(instance.MethodCreate, codes.Internal); w.declare() },
			[]string{reasonFailedCreate, "cause:" + v1alpha1.CauseDriverFailed, "code:Internal", "method:CreateMachine"},
		},
		"VM of another": {
			func(w *world) { w.elder(); w.driver.vms[machineName] = "sim:///m1"; w.declare() },
			[]string{reasonFailedCreate, "cause:" + v1alpha1.CauseInstanceOwned},
		},
		"VM is lost": {
			func(w *world) { w.declare(restored) },
			[]string{reasonUnhealthy, "cause:" + v1alpha1.CauseInstanceLost},
		},
		"node is missing": {
			func(w *world) { w.running(); w.dropNode() },
			[]string{reasonUnhealthy, "cause:" + v1alpha1.CauseNodeMissing},
		},
		"deletion fails": {
			func(w *world) { w.running(); w.driver.fails(instance.MethodDelete, codes.Internal); w.delete() },
			[]string{reasonFailedDelete, "cause:" + v1alpha1.CauseDriverFailed, "deletion-step:" + v1alpha1.StepDeleteInstance},
		},
		"shared VM": {
			func(w *world) { w.running(); w.elder(); w.delete() },
			[]string{reasonFailedDelete, "cause:" + v1alpha1.CauseInstanceShared, "deletion-step:" + v1alpha1.StepIdentify},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			tc.given(w)
			w.settle()
			events := w.told()
			for _, event := range events {
				found := true
				for _, want := range tc.want {
					found = found && strings.Contains(event, want)
				}
				if found {
					return
				}
			}
			t.Errorf("events %q, want one with %q", events, tc.want)
		})
	}
}
