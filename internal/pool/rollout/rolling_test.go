package rollout

import (
	"testing"

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
