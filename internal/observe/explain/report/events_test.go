package report

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// TestEvents_Names checks which events mention an object. Names are often prefixes of other names. MCM does not annotate
// events, and mentions one Machine per event.
func TestEvents_Names(t *testing.T) {
	for name, tc := range map[string]struct {
		objects, message string
		want             bool
	}{
		"one":                 {"pool-a-1", "", true},
		"one of several":      {"pool-a-0,pool-a-1,pool-a-2", "", true},
		"a longer name":       {"pool-a-12", "", false},
		"a longer prefix":     {"my-pool-a-1", "", false},
		"none":                {"", "", false},
		"only in the message": {"", "Deleted 1 machine (pool-a-1): it failed", false},
		"of MCM":              {"", "Deleted machine: pool-a-1", true},
		"of MCM, combined":    {"", "(combined from similar events): Deleted machine: pool-a-1", true},
		"of MCM, longer":      {"", "Deleted machine: pool-a-12", false},
	} {
		event := &corev1.Event{Message: tc.message}
		event.Annotations = map[string]string{v1alpha1.EventAnnotationObjects: tc.objects}
		if got := Names(event, "pool-a-1"); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
