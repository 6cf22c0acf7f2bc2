package planner

import (
	"testing"

	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// TestNoHistoryIsCutBeforeThereIsASet: the sets that are there may be all that tells what was.
func TestNoHistoryIsCutBeforeThereIsASet(t *testing.T) {
	t.Parallel()
	f := NewFacts(newDeployment(3, paused, class("c"), func(d *v1alpha1.MachineDeployment) { d.Spec.RevisionHistoryLimit = ptr.To(int32(0)) }),
		sets{setOf("a", 0), setOf("b", 0)}, noon)
	for _, op := range planHistory(f) {
		t.Errorf("%s %s: %s", op.Action, op.Set.Name, op.Reason)
	}
}
