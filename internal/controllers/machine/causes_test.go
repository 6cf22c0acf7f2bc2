package machine

import (
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/fake"
)

// TestEvents_HaveCauses checks that the annotations of an event contain its cause and the step.
func TestEvents_HaveCauses(t *testing.T) {
	cases := map[string]struct {
		given func(h *harness)
		want  []string
	}{
		"class is missing": {
			func(h *harness) {
				change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) { c.Finalizers = nil })
				h.remove(newClass(h.Key.Namespace))
				h.declare()
			},
			[]string{reasonFailedCreate, "cause:" + v1alpha1.CauseInvalidClassInputs},
		},
		"driver fails": {
			func(h *harness) { h.Driver.Fail(fake.CreateMachine, codes.Internal); h.declare() },
			[]string{reasonFailedCreate, "cause:" + v1alpha1.CauseDriverFailed, "code:Internal", "method:CreateMachine"},
		},
		"VM of another Machine": {
			func(h *harness) { h.elder(); h.addVM(machineName, "sim:///m1"); h.declare() },
			[]string{reasonFailedCreate, "cause:" + v1alpha1.CauseInstanceOwned},
		},
		"VM is lost": {
			func(h *harness) { h.declare(restored) },
			[]string{reasonUnhealthy, "cause:" + v1alpha1.CauseInstanceLost},
		},
		"node is missing": {
			func(h *harness) { h.running(); h.dropNode() },
			[]string{reasonUnhealthy, "cause:" + v1alpha1.CauseNodeMissing},
		},
		"deletion fails": {
			func(h *harness) { h.running(); h.Driver.Fail(fake.DeleteMachine, codes.Internal); h.delete() },
			[]string{reasonFailedDelete, "cause:" + v1alpha1.CauseDriverFailed, "deletion-step:" + v1alpha1.StepDeleteInstance},
		},
		"VM remains": {
			func(h *harness) { h.running(); h.ignoreDeletes(true); h.delete() },
			[]string{reasonDeleting, "cause:" + v1alpha1.CauseInstanceExists, "deletion-step:" + v1alpha1.StepDeleteInstance},
		},
		"shared VM": {
			func(h *harness) { h.running(); h.elder(); h.delete() },
			[]string{reasonFailedDelete, "cause:" + v1alpha1.CauseInstanceShared, "deletion-step:" + v1alpha1.StepIdentify},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			tc.given(h)
			h.Settle()
			events := h.takeEvents()
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
