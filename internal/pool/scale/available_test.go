package scale

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// TestAvailableIn checks that spec.minReadySeconds starts when the node became ready, unless the node's clock
// is ahead.
func TestAvailableIn(t *testing.T) {
	running := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	set := &v1alpha1.MachineSet{Spec: v1alpha1.MachineSetSpec{MinReadySeconds: 60}}
	for reason, test := range map[string]struct {
		ready time.Time
		want  time.Duration
	}{
		"no node":                    {time.Time{}, 50 * time.Second},
		"the node was ready before":  {running.Add(-time.Second), 49 * time.Second},
		"its clock is an hour ahead": {running.Add(time.Hour), 50 * time.Second},
		"it was ready long ago":      {running.Add(-time.Hour), 0},
	} {
		t.Run(reason, func(t *testing.T) {
			machine := &v1alpha1.Machine{}
			machine.Status.CurrentStatus.LastUpdateTime = metav1.NewTime(running)
			if !test.ready.IsZero() {
				machine.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, LastTransitionTime: metav1.NewTime(test.ready)}}
			}
			if got := AvailableIn(machine, Facts{Set: set, EnforceMinReady: true, Now: running.Add(10 * time.Second)}); got != test.want {
				t.Errorf("in %s, want %s", got, test.want)
			}
		})
	}
}
