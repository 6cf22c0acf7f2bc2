package planner

import (
	"testing"

	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/fixture"
)

// TestNoHistoryIsCutBeforeThereIsASet: the sets that are there may be all that tells what was.
func TestNoHistoryIsCutBeforeThereIsASet(t *testing.T) {
	t.Parallel()
	f := NewFacts(fixture.Deployment(3, fixture.Paused, fixture.OfClass("c"), func(d *v1alpha1.MachineDeployment) { d.Spec.RevisionHistoryLimit = ptr.To(int32(0)) }),
		sets{fixture.Set("a", 0), fixture.Set("b", 0)}, fixture.Noon)
	for _, op := range planHistory(f) {
		t.Errorf("%s %s: %s", op.Action, op.Set.Name, op.Reason)
	}
}
