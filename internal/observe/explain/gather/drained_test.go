package gather

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/preservation"
)

// TestMachine_ReadsPodsOnlyOfDrainedNodes checks for which nodes pods and volumes are read.
func TestMachine_ReadsPodsOnlyOfDrainedNodes(t *testing.T) {
	now := time.Now()
	plan := preservation.Plan{Value: preservation.Now, Expiry: &metav1.Time{Time: now.Add(time.Hour)}}
	update := func(reason string) func(*v1alpha1.Machine, *corev1.Node) {
		return func(_ *v1alpha1.Machine, n *corev1.Node) {
			n.Status.Conditions = []corev1.NodeCondition{{Type: v1alpha1.NodeInPlaceUpdate, Status: corev1.ConditionTrue, Reason: reason}}
		}
	}
	preserved := func(phase v1alpha1.MachinePhase, done bool) func(*v1alpha1.Machine, *corev1.Node) {
		return func(m *v1alpha1.Machine, n *corev1.Node) {
			m.Status.CurrentStatus = v1alpha1.CurrentStatus{Phase: phase, PreserveExpiryTime: plan.Expiry}
			preservation.Mark(n, phase == v1alpha1.MachineFailed, now)
			if done {
				preservation.SetPreserved(n, plan, preservation.Done, now)
			}
		}
	}
	for name, tc := range map[string]struct {
		given func(*v1alpha1.Machine, *corev1.Node)
		want  bool
	}{
		"running":                {func(*v1alpha1.Machine, *corev1.Node) {}, false},
		"deleted":                {func(m *v1alpha1.Machine, _ *corev1.Node) { m.DeletionTimestamp = &metav1.Time{Time: now} }, true},
		"update candidate":       {update(v1alpha1.CandidateForUpdate), false},
		"selected for an update": {update(v1alpha1.SelectedForUpdate), true},
		"being updated":          {update(v1alpha1.ReadyForUpdate), false},
		"preserved, running":     {preserved(v1alpha1.MachineRunning, false), false},
		"preserved, failed":      {preserved(v1alpha1.MachineFailed, false), true},
		"preserved, drained":     {preserved(v1alpha1.MachineFailed, true), false},
	} {
		t.Run(name, func(t *testing.T) {
			machine, node := &v1alpha1.Machine{}, &corev1.Node{}
			tc.given(machine, node)
			if got := drained(machine, node); got != tc.want {
				t.Errorf("is drained: %v, want %v", got, tc.want)
			}
		})
	}
}
