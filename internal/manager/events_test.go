package manager

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// TestEvents_KeepAnnotations checks that events with annotations are not combined. client-go combines
// frequent events on an object with the same reason and drops their annotations. Events without annotations are
// combined as by client-go.
func TestEvents_KeepAnnotations(t *testing.T) {
	for name, annotations := range map[string]map[string]string{
		"annotated": {v1alpha1.EventAnnotationCause: v1alpha1.CauseMachineFailed},
		"bare":      nil,
	} {
		t.Run(name, func(t *testing.T) {
			correlator, combined := record.NewEventCorrelatorWithOptions(correlation), 0
			for i := range correlation.MaxEvents + 20 {
				result, err := correlator.EventCorrelate(&corev1.Event{
					ObjectMeta:     metav1.ObjectMeta{Namespace: "n", Name: fmt.Sprintf("event-%d", i), Annotations: annotations},
					InvolvedObject: corev1.ObjectReference{Kind: "MachineSet", Namespace: "n", Name: "pool-a"},
					Reason:         "SuccessfulDelete", Message: fmt.Sprintf("Deleted 1 machine (pool-a-%d)", i), Type: corev1.EventTypeNormal,
				})
				if err != nil || result.Skip {
					t.Fatalf("event %d is dropped: %v", i, err)
				}
				if strings.HasPrefix(result.Event.Message, "(combined") {
					combined++
				} else if !maps.Equal(result.Event.Annotations, annotations) {
					t.Errorf("event %d has the annotations %v", i, result.Event.Annotations)
				}
			}
			if (combined > 0) != (annotations == nil) {
				t.Errorf("%d events are combined", combined)
			}
		})
	}
}

// TestEvents_RepetitionsAreCounted checks that repetitions are counted, also for events with annotations.
func TestEvents_RepetitionsAreCounted(t *testing.T) {
	correlator := record.NewEventCorrelatorWithOptions(correlation)
	event := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.EventAnnotationCause: v1alpha1.CauseSurplus}}, Message: "the same", Count: 1}
	for want := range int32(3) {
		result, err := correlator.EventCorrelate(event)
		if err != nil || result.Event.Count != want+1 {
			t.Fatalf("count %d, want %d: %v", result.Event.Count, want+1, err)
		}
		correlator.UpdateState(result.Event)
	}
}
