package gather

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/preservation"
)

// TestMachine_ReadsPodsOnlyOfDrainedNodes: pods and volumes are read of these nodes only.
func TestMachine_ReadsPodsOnlyOfDrainedNodes(t *testing.T) {
	now := time.Now()
	plan := preservation.Plan{Value: preservation.Now, Expiry: &metav1.Time{Time: now.Add(time.Hour)}}
	update := func(reason string) func(*v1alpha1.Machine, *corev1.Node) {
		return func(_ *v1alpha1.Machine, n *corev1.Node) {
			n.Status.Conditions = []corev1.NodeCondition{{Type: v1alpha1.NodeInPlaceUpdate, Status: corev1.ConditionTrue, Reason: reason}}
		}
	}
	kept := func(phase v1alpha1.MachinePhase, done bool) func(*v1alpha1.Machine, *corev1.Node) {
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
		"running":           {func(*v1alpha1.Machine, *corev1.Node) {}, false},
		"deleted":           {func(m *v1alpha1.Machine, _ *corev1.Node) { m.DeletionTimestamp = &metav1.Time{Time: now} }, true},
		"may be updated":    {update(v1alpha1.CandidateForUpdate), false},
		"is to be updated":  {update(v1alpha1.SelectedForUpdate), true},
		"is being updated":  {update(v1alpha1.ReadyForUpdate), false},
		"kept, runs":        {kept(v1alpha1.MachineRunning, false), false},
		"kept, failed":      {kept(v1alpha1.MachineFailed, false), true},
		"kept, was drained": {kept(v1alpha1.MachineFailed, true), false},
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
