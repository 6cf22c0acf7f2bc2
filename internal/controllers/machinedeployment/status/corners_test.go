package status

import (
	"testing"

	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/planner"
	"github.com/millwright-dev/millwright/test/fixture"
)

// TestAStatusIsOfNoGenerationUntilAllIsMarked: a set was not scaled as it was asked for.
func TestAStatusIsOfNoGenerationUntilAllIsMarked(t *testing.T) {
	t.Parallel()
	f := planner.NewFacts(fixture.Deployment(3), sets{fixture.Set("a", 3)}, fixture.Noon)
	var o planner.Outcome
	o.LeaveUnmarked(planner.ErrMark)
	if got := Next(f, o).ObservedGeneration; got != 0 {
		t.Errorf("it is that of generation %d", got)
	}
}
