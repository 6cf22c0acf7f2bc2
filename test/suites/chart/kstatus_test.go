package chart

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/yaml"
)

// TestKstatus_JudgesRareStates checks states that no recorded object has.
func TestKstatus_JudgesRareStates(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		object string
		want   status.Status
	}{
		"changed deployment": {`{metadata: {generation: 2}, status: {observedGeneration: 1}}`, status.InProgressStatus},
		// Before the VM controller has seen it, an object has no status, so kstatus has nothing to wait for.
		"new VM":                 {`{metadata: {generation: 1}}`, status.CurrentStatus},
		"lost VM":                {`{metadata: {generation: 1}, status: {observedGeneration: 1, conditions: [{type: Ready, status: Unknown}]}}`, status.InProgressStatus},
		"Machine of a dead node": {`{metadata: {generation: 1}, status: {currentStatus: {phase: Failed}, conditions: [{type: Ready, status: Unknown}]}}`, status.InProgressStatus},
		// The conditions of design note 0077.
		"proposed rollout": {`{metadata: {generation: 1}, status: {observedGeneration: 1, conditions: [{type: Reconciling, status: "True"}]}}`, status.InProgressStatus},
		"proposed failure": {`{metadata: {generation: 1}, status: {observedGeneration: 1, conditions: [{type: Stalled, status: "True"}]}}`, status.FailedStatus},
		"proposed default": {`{metadata: {generation: 1}, status: {observedGeneration: -1}}`, status.InProgressStatus},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := judgedByKstatus(t, tc.object); got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
		})
	}
}

// judgedByKstatus returns the status that kstatus computes for an object in YAML.
func judgedByKstatus(t *testing.T, object string) status.Status {
	t.Helper()
	text, err := yaml.YAMLToJSON([]byte(object))
	if err != nil {
		t.Fatal(err)
	}
	fields := map[string]any{}
	if err := json.Unmarshal(text, &fields); err != nil {
		t.Fatal(err)
	}
	result, err := status.Compute(&unstructured.Unstructured{Object: fields})
	if err != nil {
		t.Fatal(err)
	}
	return result.Status
}
