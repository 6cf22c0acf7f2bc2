package noderef_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
)

func TestSetTerminating(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	condition := func(status corev1.ConditionStatus, reason string, at time.Time) corev1.NodeCondition {
		return corev1.NodeCondition{Type: v1alpha1.NodeTerminationCondition, Status: status, Reason: reason, LastHeartbeatTime: metav1.NewTime(at), LastTransitionTime: metav1.NewTime(at)}
	}
	ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue}
	long := now.Add(-time.Hour)
	cases := map[string]struct {
		given     []corev1.NodeCondition
		unhealthy bool
		want      []corev1.NodeCondition
	}{
		"not requested":       {[]corev1.NodeCondition{ready}, false, []corev1.NodeCondition{ready, condition("True", v1alpha1.NodeScaleDown, now)}},
		"unhealthy":           {nil, true, []corev1.NodeCondition{condition("True", v1alpha1.NodeUnhealthy, now)}},
		"already set":         {[]corev1.NodeCondition{condition("True", v1alpha1.NodeScaleDown, long), ready}, true, []corev1.NodeCondition{condition("True", v1alpha1.NodeScaleDown, long), ready}},
		"set to false before": {[]corev1.NodeCondition{condition("False", "", long), ready}, true, []corev1.NodeCondition{condition("True", v1alpha1.NodeUnhealthy, now), ready}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			n := &corev1.Node{Status: corev1.NodeStatus{Conditions: tc.given}}
			noderef.SetTerminating(n, tc.unhealthy, now)
			for i := range n.Status.Conditions {
				n.Status.Conditions[i].Message = ""
			}
			if diff := cmp.Diff(tc.want, n.Status.Conditions); diff != "" {
				t.Errorf("conditions (-want +got):\n%s", diff)
			}
		})
	}
}
