package status

import (
	"testing"

	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/planner"
)

// TestNothingIsUnavailableBelowZero: machines that are too many are there for a while.
func TestNothingIsUnavailableBelowZero(t *testing.T) {
	t.Parallel()
	for reason, test := range map[string]struct {
		sets sets
		want int32
	}{
		"some are missing":         {sets{setOf("a", 3, reports(3, 1))}, 2},
		"some are too many":        {sets{setOf("a", 1, reports(4, 4))}, 0},
		"an old set has some left": {sets{setOf("a", 3), setOf("b", 0, reports(2, 2))}, 0},
	} {
		if got := nextStatus(planner.NewFacts(newDeployment(3), test.sets, noon), nil).UnavailableReplicas; got != test.want {
			t.Errorf("%s: %d unavailable, want %d", reason, got, test.want)
		}
	}
}
