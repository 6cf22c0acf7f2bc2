package machine

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// setOf makes a MachineSet with a replacement policy the owner of the Machines.
func (h *harness) setOf(policy string, names ...string) {
	h.Helper()
	set := fixture.MachineSet(func(set *v1alpha1.MachineSet) {
		set.Namespace = h.Key.Namespace
		metav1.SetMetaDataAnnotation(&set.ObjectMeta, v1alpha1.AnnotationKeyReplacement, policy)
	})
	if err := h.control.Create(h.Context(), set); err != nil {
		h.Fatal(err)
	}
	for _, h.Key.Name = range names {
		change(h, h.machine(), func(m *v1alpha1.Machine) {
			m.OwnerReferences = []metav1.OwnerReference{{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "MachineSet", Name: set.Name, UID: set.UID, Controller: ptr.To(true)}}
			m.Spec.NodeTemplateSpec.Labels = map[string]string{corev1.LabelTopologyZone: "z1"}
		})
	}
}

// timeOut lets the health timeout of the Machines expire.
func (h *harness) timeOut(names ...string) {
	h.Helper()
	h.passOver(names...)
	h.Clock.Step(healthTimeout)
	h.passOver(names...)
	h.passOver(names...)
}

// TestReplacement_FollowsPolicyOfMachineSet checks that the policy of the MachineSet limits how many Machines become Failed, and that the
// other Machines report once what they wait for.
func TestReplacement_FollowsPolicyOfMachineSet(t *testing.T) {
	for name, test := range map[string]struct {
		policy  string
		want    int
		message string
	}{
		"half at the same time": {`{"budgets":[{"max":"50%"}]}`, 3, "no more than 50% may be replaced at the same time"},
		"none":                  {`{"budgets":[{"max":0}]}`, 0, "a budget of 0 does not allow replacing machines"},
		"a rate":                {`{"budgets":[{"max":2,"within":"1h"}]}`, 2, "no more than 2 may be replaced within 60m"},
		"an outage":             {`{"zoneOutage":"Wait"}`, 0, "all machines in zone z1 are unhealthy; waiting for the zone to recover"},
		"unparsable policy":     {`{"budget":7}`, 1, `because other machines of "a" are being replaced`},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			names := h.pool("a", 6)
			h.setOf(test.policy, names...)
			h.timeOut(names...)
			if got := h.failed(names...); len(got) != test.want {
				t.Fatalf("Failed Machines: %v, want %d", got, test.want)
			}
			delayed := 0
			for _, event := range h.takeEvents() {
				if strings.Contains(event, reasonDelayed) && strings.Contains(event, test.message) {
					delayed++
				}
			}
			if want := len(names) - test.want; delayed != want {
				t.Errorf("%d Machines report %q, want %d", delayed, test.message, want)
			}
		})
	}
}

// TestReplacement_TotalLimit checks that the total limit applies to all pools together, and that zero disables replacements.
func TestReplacement_TotalLimit(t *testing.T) {
	for most, want := range map[int32]int{0: 0, 1: 1} {
		h := newHarness(t)
		opts := h.controller.Options
		opts.Health.MaxTotalReplacements = ptr.To(intstr.FromInt32(most))
		h.controller = New(opts)
		h.Reconciler = h.controller
		names := append(h.pool("a", 2), h.pool("b", 2)...)
		h.timeOut(names...)
		if got := h.failed(names...); len(got) != want {
			t.Errorf("Failed Machines: %v, with a limit of %d", got, most)
		}
	}
}
