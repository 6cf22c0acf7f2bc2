package explain

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// TestMachine_PodComesBack checks the explanation of a pod that tolerates the cordon of the node. If it came to the node
// after the cordon, the drain does not wait for it, and it is not reported as waiting for its eviction.
func TestMachine_PodComesBack(t *testing.T) {
	cordoned := func(f *MachineFacts) {
		f.Target.Node.Status.Conditions = append(f.Target.Node.Status.Conditions, corev1.NodeCondition{
			Type: v1alpha1.NodeTerminationCondition, Status: corev1.ConditionTrue, LastTransitionTime: ago(5 * time.Minute),
		})
	}
	tolerant := func(created time.Duration) given {
		return pod("operator", func(p *corev1.Pod) {
			p.CreationTimestamp = ago(created)
			p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		})
	}
	for name, tc := range map[string]struct {
		created   time.Duration
		want, not report.Cause
	}{
		"before the cordon": {6 * time.Minute, report.EvictionPending, report.PodReturned},
		"after the cordon":  {4 * time.Minute, report.PodReturned, report.EvictionPending},
	} {
		t.Run(name, func(t *testing.T) {
			draining := deletes(processing, time.Minute, "Draining, waiting for pod shop/db-0 to terminate. "+messages.Drain)
			got := Machine(facts(all(draining, cordoned, pod("db-0", terminating(10*time.Second)), tolerant(tc.created))), now)
			has := func(cause report.Cause) bool {
				return slices.ContainsFunc(got.Why, func(f report.Finding) bool {
					return f.Cause == cause && strings.Contains(f.Object, "operator")
				})
			}
			if !has(tc.want) || has(tc.not) {
				t.Errorf("%+v, want %s and not %s", got.Why, tc.want, tc.not)
			}
		})
	}
}
