package chart

import (
	"os"
	"testing"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/ext"
	"sigs.k8s.io/yaml"
)

// TestFlux_JudgesHealth evaluates the health checks of the example, as Flux does, on MachineDeployments in each state.
func TestFlux_JudgesHealth(t *testing.T) {
	t.Parallel()
	check := fluxCheck(t)
	for name, tc := range map[string]struct {
		object          string
		failed, current bool
	}{
		"new":                 {`{metadata: {generation: 1}, spec: {replicas: 2}}`, false, false},
		"changed":             {`{metadata: {generation: 2}, spec: {replicas: 2}, status: {observedGeneration: 1, replicas: 2, updatedReplicas: 2, availableReplicas: 2}}`, false, false},
		"creating":            {`{metadata: {generation: 1}, spec: {replicas: 2}, status: {observedGeneration: 1, replicas: 2, updatedReplicas: 2}}`, false, false},
		"rollout":             {`{metadata: {generation: 2}, spec: {replicas: 2}, status: {observedGeneration: 2, replicas: 3, updatedReplicas: 1, availableReplicas: 2}}`, false, false},
		"end of a rollout":    {`{metadata: {generation: 2}, spec: {replicas: 2}, status: {observedGeneration: 2, replicas: 3, updatedReplicas: 2, availableReplicas: 2}}`, false, false},
		"complete":            {`{metadata: {generation: 2}, spec: {replicas: 2}, status: {observedGeneration: 2, replicas: 2, updatedReplicas: 2, availableReplicas: 2, conditions: [{type: Progressing, status: "True"}]}}`, false, true},
		"empty":               {`{metadata: {generation: 1}, spec: {}, status: {observedGeneration: 1}}`, false, true},
		"no progress":         {`{metadata: {generation: 1}, spec: {replicas: 2}, status: {observedGeneration: 1, conditions: [{type: Progressing, status: "False"}]}}`, true, false},
		"frozen":              {`{metadata: {generation: 1}, spec: {replicas: 2}, status: {observedGeneration: 1, conditions: [{type: Frozen, status: "True"}]}}`, true, false},
		"cannot create":       {`{metadata: {generation: 1}, spec: {replicas: 2}, status: {observedGeneration: 1, conditions: [{type: ReplicaFailure, status: "True"}]}}`, true, false},
		"no longer a failure": {`{metadata: {generation: 1}, spec: {replicas: 0}, status: {observedGeneration: 1, conditions: [{type: ReplicaFailure, status: "False"}]}}`, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if failed := holds(t, check.Failed, tc.object); failed != tc.failed {
				t.Errorf("failed: %t, want %t", failed, tc.failed)
			}
			if current := holds(t, check.Current, tc.object); current != tc.current {
				t.Errorf("current: %t, want %t", current, tc.current)
			}
		})
	}
}

// healthCheck has the expressions with which Flux checks a kind.
type healthCheck struct{ Current, Failed string }

// fluxCheck returns the health checks of the example for MachineDeployments.
func fluxCheck(t *testing.T) healthCheck {
	t.Helper()
	text, err := os.ReadFile(place(t, "examples/gitops/flux/kustomization.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var object struct {
		Spec struct{ HealthCheckExprs []healthCheck }
	}
	if err := yaml.Unmarshal(text, &object); err != nil {
		t.Fatal(err)
	}
	return object.Spec.HealthCheckExprs[0]
}

// holds evaluates an expression. Its variables are the fields of the object. For Flux, an expression about a missing
// field does not hold yet.
func holds(t *testing.T, expression, object string) bool {
	t.Helper()
	fields := map[string]any{}
	if err := yaml.Unmarshal([]byte(object), &fields); err != nil {
		t.Fatal(err)
	}
	environment, err := cel.NewEnv(
		cel.HomogeneousAggregateLiterals(), cel.EagerlyValidateDeclarations(true), cel.DefaultUTCTimeZone(true), cel.CrossTypeNumericComparisons(true),
		ext.Strings(), cel.Variable("metadata", cel.DynType), cel.Variable("spec", cel.DynType), cel.Variable("status", cel.DynType),
	)
	if err != nil {
		t.Fatal(err)
	}
	checked, issues := environment.Compile(expression)
	if issues.Err() != nil {
		t.Fatal(issues.Err())
	}
	program, err := environment.Program(checked)
	if err != nil {
		t.Fatal(err)
	}
	result, _, err := program.Eval(fields)
	if err != nil {
		if _, started := fields["status"]; started {
			t.Errorf("%s: %v", expression, err)
		}
		return false
	}
	return result.Value().(bool)
}
