package migration

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// TestTarget_LimitsAfterClockIsSetBack checks that time limits are not extended if the clock is set back: the
// time that has passed by this process's clock counts.
func TestTarget_LimitsAfterClockIsSetBack(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	source, target := &corev1.Pod{}, &corev1.Pod{}
	source.Name, target.Name, target.UID = "s", "t", "1"
	full := target.DeepCopy()
	full.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
	for name, test := range map[string]struct {
		target *corev1.Pod
		known  time.Duration // before now
		want   Decision
	}{
		"just begun":           {target, 0, Decision{After: unschedulableTimeout}},
		"no host has capacity": {full, unschedulableTimeout, Decision{Failure: ReasonUnschedulable}},
		"may be starting":      {target, time.Minute, Decision{After: readyTimeout - time.Minute}},
		"does not report":      {target, readyTimeout, Decision{Failure: ReasonTargetNotReady, Message: "The target did not report in time."}},
	} {
		t.Run(name, func(t *testing.T) {
			status := &v1alpha1.VirtualMachineStatus{Migration: &v1alpha1.VirtualMachineMigration{
				Phase: v1alpha1.MigrationPreparing, SourcePodName: "s", TargetPodName: "t", TargetPodUID: "1",
				StartTime: metav1.NewTime(now.Add(24 * time.Hour)),
			}}
			status.ActivePodName = "s"
			got := Next(Facts{Status: status, Source: source, Target: test.target, Claims: true, Now: now, Known: now.Add(-test.known)})
			if got != test.want {
				t.Errorf("the decision is %+v, want %+v", got, test.want)
			}
		})
	}
}
