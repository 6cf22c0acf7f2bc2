package rollout

import (
	"testing"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/counts"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// silent is a set that does not tell for which size of its deployment it was scaled.
func silent(set *v1alpha1.MachineSet) { delete(set.Annotations, v1alpha1.AnnotationKeyDesiredReplicas) }

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
		if got := counts.Settled(test.set); got != test.want {
			t.Errorf("%s: settled is %t", reason, got)
		}
	}
	f := NewFacts(fixture.Deployment(3, fixture.Recreate, fixture.OfClass("b")), sets{fixture.Set("a", 0, create)}, fixture.Noon)
	if got := brief(t, planReplicas(New(f))); len(got) > 0 {
		t.Errorf("before the old machines are known to be gone, planned is %q", got)
	}
}

// TestNumbersAreNeverNegative: those that a set asks for, and those that it reports.
func TestNumbersAreNeverNegative(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		set                 *v1alpha1.MachineSet
		asked, usable, kept int32
	}{
		"as it should be":      {fixture.Set("a", 5, fixture.Reports(5, 3), fixture.PreservedFailed(1)), 5, 3, 1},
		"asks for less":        {fixture.Set("a", -5, fixture.Reports(5, 3), fixture.PreservedFailed(1)), 0, 0, 0},
		"less is available":    {fixture.Set("a", 5, fixture.Reports(5, -3), fixture.PreservedFailed(1)), 5, 0, 1},
		"less is preserved":    {fixture.Set("a", 5, fixture.Reports(5, 3), fixture.PreservedFailed(-1)), 5, 3, 0},
		"more than it has":     {fixture.Set("a", 5, fixture.Reports(5, 9), fixture.PreservedFailed(9)), 5, 5, 0},
		"more are preserved":   {fixture.Set("a", 5, fixture.Reports(5, 3), fixture.PreservedFailed(9)), 5, 3, 2},
		"fewer than there are": {fixture.Set("a", 5, fixture.Reports(-1, 0)), 5, 0, 0},
	} {
		if asked, usable, kept := counts.Desired(test.set), counts.Available(test.set), counts.PreservedFailed(test.set); asked != test.asked || usable != test.usable || kept != test.kept || counts.Existing(test.set) < asked {
			t.Errorf("%s: it asks for %d, %d are usable and %d kept, of %d", name, asked, usable, kept, counts.Existing(test.set))
		}
	}
}
