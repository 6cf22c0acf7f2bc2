package tier_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestAll_MatchesRuns checks in which runs a test that calls All takes part, and which runs are exhaustive.
func TestAll_MatchesRuns(t *testing.T) {
	for value, want := range map[string]struct{ runs, exhaustive bool }{
		"":           {false, false},
		"all":        {true, false},
		"exhaustive": {true, true},
	} {
		t.Setenv(tier.Variable, value)
		ran := false
		t.Run(value, func(t *testing.T) {
			tier.All(t)
			ran = true
		})
		if ran != want.runs || tier.Exhaustive() != want.exhaustive {
			t.Errorf("%q: runs %t, exhaustive %t", value, ran, tier.Exhaustive())
		}
	}
}

// TestCheck_IsTheSameInEachRun checks that the seed is fixed.
func TestCheck_IsTheSameInEachRun(t *testing.T) {
	t.Setenv(tier.Variable, "")
	draw := func() (random []int) {
		tier.Check(t, func(rt *rapid.T) { random = append(random, rapid.Int().Draw(rt, "number")) })
		return random
	}
	if a, b := draw(), draw(); len(a) < 2 || !slices.Equal(a, b) {
		t.Errorf("%d and %d numbers, not the same", len(a), len(b))
	}
}
