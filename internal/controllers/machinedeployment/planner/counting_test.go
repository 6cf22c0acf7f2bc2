package planner

import (
	"testing"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/fixture"
)

// silent is a set that does not tell for which size of its deployment it was scaled.
func silent(set *v1alpha1.MachineSet) { delete(set.Annotations, v1alpha1.AnnotationKeyDesiredReplicas) }

// TestASetThatSaysNothingDoesNotTellThatTheDeploymentWasScaled: as one that a user has restored.
func TestASetThatSaysNothingDoesNotTellThatTheDeploymentWasScaled(t *testing.T) {
	t.Parallel()
	for reason, test := range map[string]struct {
		sets sets
		want bool
	}{
		"none says anything":     {sets{fixture.Set("a", 3, silent), fixture.Set("b", 1, silent)}, false},
		"one says the same":      {sets{fixture.Set("a", 3, silent), fixture.Set("b", 1, fixture.ScaledFor(8, 9))}, false},
		"one says another size":  {sets{fixture.Set("a", 3, silent), fixture.Set("b", 1, fixture.ScaledFor(4, 5))}, true},
		"but one without any":    {sets{fixture.Set("a", 3, silent), fixture.Set("b", 0, fixture.ScaledFor(4, 5))}, false},
		"one that is not in use": {sets{fixture.Set("a", 0, silent), fixture.Set("b", 8, fixture.ScaledFor(8, 9))}, false},
	} {
		if got := resized(NewFacts(fixture.Deployment(8, fixture.Paused, fixture.OfClass("c")), test.sets, fixture.Noon)); got != test.want {
			t.Errorf("%s: %t", reason, got)
		}
	}
}

// TestAnOldFailureDoesNotTellThatASetWasLookedAt: a set that has what it asks for makes none, so
// that it failed to is of before it was scaled down. It may have machines that it did not report.
func TestAnOldFailureDoesNotTellThatASetWasLookedAt(t *testing.T) {
	t.Parallel()
	failed := func(reason string) func(*v1alpha1.MachineSet) {
		return func(set *v1alpha1.MachineSet) {
			fixture.Unsettled(set)
			set.Status.Conditions = []v1alpha1.MachineSetCondition{{Type: v1alpha1.MachineSetReplicaFailure, Status: v1alpha1.ConditionTrue, Reason: reason}}
		}
	}
	create := failed("FailedCreate")
	for reason, test := range map[string]struct {
		set  *v1alpha1.MachineSet
		want bool
	}{
		"it may still fail":           {fixture.Set("a", 3, fixture.Reports(2, 2), create), true},
		"one of them may be leaving":  {fixture.Set("a", 3, fixture.Reports(3, 2), create), true},
		"it has enough":               {fixture.Set("a", 2, fixture.Reports(2, 2), create), false},
		"it has more":                 {fixture.Set("a", 1, fixture.Reports(2, 2), create), false},
		"none are asked for":          {fixture.Set("a", 0, create), false},
		"none are, and it is deleted": {fixture.Set("a", 3, fixture.Reports(0, 0), create, fixture.Leaving), false},
		"another failure":             {fixture.Set("a", 0, fixture.Reports(2, 2), failed("FailedDelete")), true},
		"it was looked at since":      {fixture.Set("a", 0, create, func(set *v1alpha1.MachineSet) { set.Status.ObservedGeneration = set.Generation }), true},
	} {
		if got := settled(test.set); got != test.want {
			t.Errorf("%s: settled is %t", reason, got)
		}
	}
	f := NewFacts(fixture.Deployment(3, fixture.Recreate, fixture.OfClass("b")), sets{fixture.Set("a", 0, create)}, fixture.Noon)
	if got := brief(t, planReplicas(f)); len(got) > 0 {
		t.Errorf("before the old machines are known to be gone, planned is %q", got)
	}
}
