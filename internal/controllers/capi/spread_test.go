package capi

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/capi/translate"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
)

// TestARestartSpreadsWhatFailed: of many whose calls failed for the process before, a few are
// tried at once; all of those are that are waited for or are well.
func TestARestartSpreadsWhatFailed(t *testing.T) {
	const many, atOnce = 50, 10
	for reason, tc := range map[string]struct {
		deleting bool
		want     int
	}{
		infrav1.ReasonCreationFailed:       {want: atOnce},
		infrav1.ReasonInsufficientCapacity: {want: atOnce},
		infrav1.ReasonInvalidSpec:          {want: atOnce},
		infrav1.ReasonDeletionFailed:       {deleting: true, want: atOnce},
		infrav1.ReasonCreating:             {want: many},
		infrav1.ReasonDeleting:             {deleting: true, want: many},
	} {
		t.Run(reason, func(t *testing.T) {
			h := newHarness(t)
			for i := range many {
				m := newGiven("ns", h.Clock.Now()).infra
				m.Name = fmt.Sprint("m", i)
				m.Status.Conditions = []metav1.Condition{{Type: infrav1.ConditionReady, Status: metav1.ConditionFalse, Reason: reason}}
				ask := h.engine.Ensure
				if tc.deleting {
					m.DeletionTimestamp = new(metav1.NewTime(h.Clock.Now()))
					ask = h.engine.Delete
				}
				objects, err := translate.Request(translate.Given{Machine: m})
				if err != nil {
					t.Fatal(err)
				}
				ask(instance.Request{Machine: objects.Machine, Class: objects.Class, Secret: objects.Secret})
			}
			if len(h.Tasks) != tc.want {
				t.Errorf("%d calls at once, want %d", len(h.Tasks), tc.want)
			}
		})
	}
}
