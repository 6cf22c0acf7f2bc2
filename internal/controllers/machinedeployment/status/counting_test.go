package status

import (
	"testing"

	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/planner"
	"github.com/millwright-dev/millwright/test/fixture"
)

// TestNothingIsUnavailableBelowZero: machines that are too many are there for a while.
func TestNothingIsUnavailableBelowZero(t *testing.T) {
	t.Parallel()
	for reason, test := range map[string]struct {
		sets sets
		want int32
	}{
		"some are missing":         {sets{fixture.Set("a", 3, fixture.Reports(3, 1))}, 2},
		"some are too many":        {sets{fixture.Set("a", 1, fixture.Reports(4, 4))}, 0},
		"an old set has some left": {sets{fixture.Set("a", 3), fixture.Set("b", 0, fixture.Reports(2, 2))}, 0},
	} {
		if got := nextStatus(planner.NewFacts(fixture.Deployment(3), test.sets, fixture.Noon), nil).UnavailableReplicas; got != test.want {
			t.Errorf("%s: %d unavailable, want %d", reason, got, test.want)
		}
	}
}
