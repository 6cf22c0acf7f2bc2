package crash

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"
)

const (
	// oneOf is which part of the deaths is tried unless all are asked for: one of so many. A
	// death costs a processor second, and `make test` can spare two minutes of them.
	oneOf = 32
	// fewest deaths are tried of a scenario.
	fewest = 2
)

// sample chooses deaths.
type sample struct {
	all  bool
	seed uint64
}

// allDeaths reports whether all are asked for.
func allDeaths() bool { return os.Getenv("MILLWRIGHT_CRASH") == "all" }

// newSample reads from the environment what is asked for. Without MILLWRIGHT_CRASH_SEED,
// every run tries other deaths.
func newSample(t *testing.T) sample {
	t.Helper()
	s := sample{seed: uint64(time.Now().UnixNano()), all: allDeaths()}
	if text := os.Getenv("MILLWRIGHT_CRASH_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("MILLWRIGHT_CRASH_SEED: %v", err)
		}
		s.seed = seed
	}
	t.Logf("a part of all; the same again with MILLWRIGHT_CRASH_SEED=%d, all with MILLWRIGHT_CRASH=all", s.seed)
	return s
}

// of chooses from the deaths of a scenario: by lot, but one of each stretch of equal length.
func (s sample) of(deaths []crash) []crash {
	n := max(len(deaths)/oneOf, min(fewest, len(deaths)))
	if s.all || n == 0 {
		return deaths
	}
	random := rand.New(rand.NewPCG(s.seed, uint64(len(deaths))))
	var chosen []crash
	for i := range n {
		from, to := i*len(deaths)/n, (i+1)*len(deaths)/n
		chosen = append(chosen, deaths[from+random.IntN(to-from)])
	}
	return chosen
}

// TestSampleIsSpread: the deaths that are tried come from all over a scenario, are the same
// for the same seed, and with many seeds are all there are.
func TestSampleIsSpread(t *testing.T) {
	var points []point
	for i := range 40 {
		points = append(points, point{operation{"api", "patch", "machines"}, i + 1})
	}
	deaths := crashes(points)
	seen := map[crash]bool{}
	for seed := range uint64(1000) {
		chosen := sample{seed: seed}.of(deaths)
		if len(chosen) != len(deaths)/oneOf {
			t.Fatalf("%d deaths are tried of %d", len(chosen), len(deaths))
		}
		for i, c := range (sample{seed: seed}).of(deaths) {
			seen[c] = true
			if c != chosen[i] {
				t.Errorf("with seed %d, death %d is %s and then %s", seed, i, chosen[i], c)
			}
			if first, last := i*len(points)/len(chosen), (i+1)*len(points)/len(chosen)+1; c.point.occurrence < first || c.point.occurrence > last {
				t.Errorf("with seed %d, death %d is %s, not among points %d to %d", seed, i, c, first, last)
			}
		}
	}
	if len(seen) != len(deaths) {
		t.Errorf("%d deaths of %d are never tried", len(deaths)-len(seen), len(deaths))
	}
	if chosen := (sample{all: true}).of(deaths); len(chosen) != len(deaths) {
		t.Errorf("%d deaths of all %d", len(chosen), len(deaths))
	}
}
