package dice_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/millwright-dev/millwright/driver/sim/internal/dice"
)

// TestDistribution_MeanBoundsAndTail: each distribution has its mean, bounds and tail over equally likely rolls.
func TestDistribution_MeanBoundsAndTail(t *testing.T) {
	t.Parallel()
	const rolls, mean = 10_000, time.Second
	for name, tc := range map[string]struct {
		distribution        dice.Distribution
		jitter              float64
		least, most, middle time.Duration
	}{
		"none":               {dice.Uniform, 0, mean, mean, mean},
		"uniform":            {dice.Uniform, 0.5, mean / 2, mean * 3 / 2, mean},
		"exponential":        {dice.Exponential, 0, 0, 10 * mean, mean},
		"long tail":          {dice.LongTail, 0, mean, 10 * mean, mean * 29 / 20},
		"long tail, varying": {dice.LongTail, 0.5, mean / 2, 10 * mean, mean * 29 / 20},
	} {
		var sum time.Duration
		least, most := time.Hour, time.Duration(0)
		for i := range rolls {
			d := tc.distribution.Spread(mean, tc.jitter, float64(i)/rolls)
			sum, least, most = sum+d, min(least, d), max(most, d)
		}
		if average := sum / rolls; (average - tc.middle).Abs() > mean/100 {
			t.Errorf("%s: got mean %v, want %v", name, average, tc.middle)
		}
		if least < tc.least || most > tc.most || most < tc.most*9/10 {
			t.Errorf("%s: got values from %v to %v, want %v to %v", name, least, most, tc.least, tc.most)
		}
	}
}

// TestChance_DependsOnlyOnNames: the result depends only on the names, and all numbers from 0 to 1 occur.
func TestChance_DependsOnlyOnNames(t *testing.T) {
	t.Parallel()
	var tenths [10]int
	for i := range 10_000 {
		roll := dice.Chance("seed", strconv.Itoa(i))
		if roll != dice.Chance("seed", strconv.Itoa(i)) {
			t.Fatal("got two numbers for the same names")
		}
		tenths[int(roll*10)]++
	}
	for i, n := range tenths {
		if n < 800 || n > 1200 {
			t.Errorf("%d of 10000 numbers are in tenth %d", n, i)
		}
	}
	if dice.Chance("a", "bc") == dice.Chance("ab", "c") {
		t.Error("names are concatenated without a separator")
	}
}
