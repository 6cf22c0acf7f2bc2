package rollout

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// silent removes the annotation that records for which size of its deployment a set was scaled.
func silent(set *v1alpha1.MachineSet) { delete(set.Annotations, v1alpha1.AnnotationKeyDesiredReplicas) }

// The status of the old set, whose failure is from before it was scaled down, may not count all its Machines.
func TestRecreate_WaitsForOldMachinesAfterOldFailure(t *testing.T) {
	t.Parallel()
	old := fixture.Set("a", 0, fixture.Unsettled, func(set *v1alpha1.MachineSet) {
		set.Status.Conditions = []v1alpha1.MachineSetCondition{{
			Type: v1alpha1.MachineSetReplicaFailure, Status: v1alpha1.ConditionTrue, Reason: v1alpha1.MachineSetReasonFailedCreate,
		}}
	})
	f := NewFacts(fixture.Deployment(3, fixture.Recreate, fixture.OfClass("b")), sets{old}, fixture.Noon)
	if got := brief(t, planReplicas(New(f))); len(got) > 0 {
		t.Errorf("planned %q before the old machines are known to be gone", got)
	}
}

// reasons returns the reasons of operations.
func reasons(operations []Operation) (all []string) {
	for _, op := range operations {
		all = append(all, op.Reason)
	}
	return all
}

// TestRolling_ScalesWithLimits checks rollouts whose sets have more Machines than allowed, or none that can be removed.
func TestRolling_ScalesWithLimits(t *testing.T) {
	t.Parallel()
	of10 := fixture.ScaledFor(10, 12)
	for reason, test := range map[string]struct {
		deployment *v1alpha1.MachineDeployment
		sets       sets
		want       []string
	}{
		// The deployment was not scaled, so only old Machines are removed.
		"the surge was lowered": {
			fixture.Deployment(10, fixture.Rolling("0", "1"), fixture.OfClass("b")),
			sets{fixture.Set("a", 6, of10), fixture.Set("b", 6, of10)}, []string{"pool-a to 3"},
		},
		"the new set has more than desired, within the surge": {
			fixture.Deployment(3, fixture.Rolling("3", "0"), fixture.OfClass("b")),
			sets{fixture.Set("a", 1), fixture.Set("b", 5)}, []string{"pool-b to 3", "pool-a to 0"},
		},
		"the new set has all, within the surge": {
			fixture.Deployment(5, fixture.Rolling("2", "0"), fixture.OfClass("b")),
			sets{fixture.Set("a", 1), fixture.Set("b", 5)}, []string{"pool-a to 0"},
		},
		"only preserved machines, and no new set": {
			fixture.Deployment(1, fixture.Rolling("1", "0"), fixture.OfClass("b")),
			sets{fixture.Set("a", 1, fixture.Reports(1, 0), fixture.PreservedFailed(1))}, []string{"create 1"},
		},
	} {
		t.Run(reason, func(t *testing.T) {
			got := brief(t, planReplicas(New(NewFacts(test.deployment, test.sets, fixture.Noon))))
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("want - got +\n%s", diff)
			}
		})
	}
}

// TestRolling_ReasonOfNewSet checks why a set is created according to its event: if users deleted the set of a
// template, the template did not change.
func TestRolling_ReasonOfNewSet(t *testing.T) {
	t.Parallel()
	for class, why := range map[string]string{
		"a": "the machine set of this template is being deleted", "b": "the template changed",
	} {
		f := NewFacts(fixture.Deployment(3, fixture.OfClass(class)), sets{fixture.Set("a", 3, fixture.Leaving)}, fixture.Noon)
		want := []string{why + ": at most 4 machines allowed during the rollout, currently 3"}
		if diff := cmp.Diff(want, reasons(planReplicas(New(f)))); diff != "" {
			t.Errorf("want - got +\n%s", diff)
		}
	}
}

// TestRolling_ReasonOfRemoval checks why Machines are removed according to the event: because they are unavailable, or
// because enough others are available.
func TestRolling_ReasonOfRemoval(t *testing.T) {
	t.Parallel()
	for why, old := range map[string]*v1alpha1.MachineSet{
		"2 machines can be removed (4 available, at least 2 required)": fixture.Set("a", 4),
		"2 of its machines are unavailable":                            fixture.Set("a", 4, fixture.Reports(4, 2)),
		"1 of its machines is unavailable, and 1 machine can be removed (3 available, at least 2 required)": fixture.Set(
			"a", 4, fixture.Reports(4, 3),
		),
	} {
		deployment := fixture.Deployment(4, fixture.Rolling("0", "2"), fixture.OfClass("b"))
		f := NewFacts(deployment, sets{old, fixture.Set("b", 0)}, fixture.Noon)
		if diff := cmp.Diff([]string{why}, reasons(planReplicas(New(f)))); diff != "" {
			t.Errorf("want - got +\n%s", diff)
		}
	}
}
