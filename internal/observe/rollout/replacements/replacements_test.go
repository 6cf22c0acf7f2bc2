package replacements

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

var now = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// in returns a Machine of a zone that has been in a phase for the given time.
func in(zone string, number int, phase v1alpha1.MachinePhase, since time.Duration) *v1alpha1.Machine {
	m := &v1alpha1.Machine{}
	m.Name = fmt.Sprintf("%s-%d", zone, number)
	m.UID = types.UID(m.Name)
	m.CreationTimestamp = metav1.NewTime(now.Add(-48 * time.Hour))
	m.Spec.Class.Name = zone
	m.Status.CurrentStatus.Phase, m.Status.CurrentStatus.LastUpdateTime = phase, metav1.NewTime(now.Add(-since))
	return m
}

// TestReplacements_Of checks the table for each policy.
func TestReplacements_Of(t *testing.T) {
	const unknown, running = v1alpha1.MachineUnknown, v1alpha1.MachineRunning
	disabled, preserved := in("b", 8, unknown, time.Hour), in("b", 9, v1alpha1.MachineFailed, time.Hour)
	disabled.Spec.MachineConfiguration = &v1alpha1.MachineConfiguration{DisableHealthTimeout: ptr.To(true)}
	preserved.Status.CurrentStatus.PreserveExpiryTime = &metav1.Time{Time: now.Add(time.Hour)}
	machines := []*v1alpha1.Machine{
		in("a", 1, unknown, 12*time.Minute), in("a", 2, unknown, 11*time.Minute), in("b", 1, unknown, 4*time.Minute),
		in("b", 2, running, time.Hour), disabled, preserved,
	}
	one := v1alpha1.ReplacementBudget{Max: intstr.FromInt32(1)}
	inZone, rate := one, one
	inZone.Per, rate.Within = corev1.LabelTopologyZone, &metav1.Duration{Duration: time.Hour}
	for name, test := range map[string]struct {
		policy *v1alpha1.ReplacementPolicy
		want   string
	}{
		"none": {nil, `a-1: yes, now
a-2: waits: other machines are being replaced
b-1: waits: other machines are being replaced`},
		"per zone": {&v1alpha1.ReplacementPolicy{Budgets: []v1alpha1.ReplacementBudget{inZone}}, `a-1: yes, now
a-2: waits: no more than 1 may be replaced at the same time with topology.kubernetes.io/zone a
b-1: yes, in 6m unless it recovers`},
		"a rate": {&v1alpha1.ReplacementPolicy{Budgets: []v1alpha1.ReplacementBudget{rate}}, `a-1: yes, now
a-2: waits: no more than 1 may be replaced within 60m
b-1: waits: no more than 1 may be replaced within 60m`},
		"an outage": {&v1alpha1.ReplacementPolicy{ZoneOutage: v1alpha1.ZoneOutageWait}, `a-1: waits: all machines in zone a are unhealthy; waiting for the zone to recover
a-2: waits: all machines in zone a are unhealthy; waiting for the zone to recover
b-1: yes, in 6m unless it recovers`},
	} {
		t.Run(name, func(t *testing.T) {
			of := Settings{
				Policy: test.policy, HealthTimeout: 10 * time.Minute, MaxReplacements: intstr.FromInt32(1),
				Zone: func(machine *v1alpha1.Machine) string { return machine.Spec.Class.Name },
			}
			var got []string
			for _, it := range Of(machines, of, now) {
				got = append(got, it.Machine.Name+": "+it.Fate(now))
			}
			want := "b-8: no, its health timeout is disabled\nb-9: no, it is preserved\n" + test.want
			if got := strings.Join(got, "\n"); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}
