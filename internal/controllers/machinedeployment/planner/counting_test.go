package planner

import (
	"testing"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
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
		"none says anything":     {sets{setOf("a", 3, silent), setOf("b", 1, silent)}, false},
		"one says the same":      {sets{setOf("a", 3, silent), setOf("b", 1, scaledFor(8, 9))}, false},
		"one says another size":  {sets{setOf("a", 3, silent), setOf("b", 1, scaledFor(4, 5))}, true},
		"but one without any":    {sets{setOf("a", 3, silent), setOf("b", 0, scaledFor(4, 5))}, false},
		"one that is not in use": {sets{setOf("a", 0, silent), setOf("b", 8, scaledFor(8, 9))}, false},
	} {
		if got := resized(NewFacts(newDeployment(8, paused, class("c")), test.sets, noon)); got != test.want {
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
			unsettled(set)
			set.Status.Conditions = []v1alpha1.MachineSetCondition{{Type: v1alpha1.MachineSetReplicaFailure, Status: v1alpha1.ConditionTrue, Reason: reason}}
		}
	}
	create := failed("FailedCreate")
	for reason, test := range map[string]struct {
		set  *v1alpha1.MachineSet
		want bool
	}{
		"it may still fail":           {setOf("a", 3, reports(2, 2), create), true},
		"one of them may be leaving":  {setOf("a", 3, reports(3, 2), create), true},
		"it has enough":               {setOf("a", 2, reports(2, 2), create), false},
		"it has more":                 {setOf("a", 1, reports(2, 2), create), false},
		"none are asked for":          {setOf("a", 0, create), false},
		"none are, and it is deleted": {setOf("a", 3, reports(0, 0), create, leaving), false},
		"another failure":             {setOf("a", 0, reports(2, 2), failed("FailedDelete")), true},
		"it was looked at since":      {setOf("a", 0, create, func(set *v1alpha1.MachineSet) { set.Status.ObservedGeneration = set.Generation }), true},
	} {
		if got := settled(test.set); got != test.want {
			t.Errorf("%s: settled is %t", reason, got)
		}
	}
	f := NewFacts(newDeployment(3, recreate, class("b")), sets{setOf("a", 0, create)}, noon)
	if got := brief(t, planReplicas(f)); len(got) > 0 {
		t.Errorf("before the old machines are known to be gone, planned is %q", got)
	}
}
