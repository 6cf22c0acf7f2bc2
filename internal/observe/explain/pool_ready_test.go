package explain

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// TestReadySince: as its set counts, also if the node's clock is ahead.
func TestReadySince(t *testing.T) {
	running := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	for reason, test := range map[string]struct{ ready, want time.Time }{
		"no node":                    {time.Time{}, running},
		"the node was ready before":  {running.Add(-time.Second), running.Add(-time.Second)},
		"its clock is an hour ahead": {running.Add(time.Hour), running},
	} {
		t.Run(reason, func(t *testing.T) {
			machine := &v1alpha1.Machine{}
			machine.Status.CurrentStatus.LastUpdateTime = metav1.NewTime(running)
			if !test.ready.IsZero() {
				machine.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, LastTransitionTime: metav1.NewTime(test.ready)}}
			}
			if got := readySince(machine); !got.Equal(test.want) {
				t.Errorf("since %s, want %s", got, test.want)
			}
		})
	}
}
