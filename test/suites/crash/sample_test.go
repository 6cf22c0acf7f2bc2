package crash

import (
	"math/bits"
	"testing"

	"github.com/millwright-dev/millwright/test/support/lot"
)

const (
	// oneOf is which part of the deaths is tried unless all are asked for: one of so many. A
	// death costs a processor second, and `make test` can spare one minute of them.
	oneOf = 64
	// fewest deaths are tried of a scenario.
	fewest = 1
	// oneScenarioOf is which part of the scenarios is played: recording one costs what a death does.
	oneScenarioOf = 3
	// brokenBuilds are looked for, of those that there are.
	brokenBuilds = 4
)

// sample chooses deaths.
type sample struct{ lot.Lot }

func newSample(t *testing.T) sample {
	t.Helper()
	return sample{lot.New(t)}
}

// scenarios chooses from all of them.
func (s sample) scenarios(all []scenario) []scenario {
	return choose(s, all, (len(all)+oneScenarioOf-1)/oneScenarioOf)
}

// choose returns n of all, in their order.
func choose[T any](s sample, all []T, n int) []T {
	var chosen []T
	for _, i := range s.Of(len(all), n) {
		chosen = append(chosen, all[i])
	}
	return chosen
}

// of chooses from the deaths of a scenario.
func (s sample) of(deaths []crash) []crash {
	return choose(s, deaths, max(len(deaths)/oneOf, min(fewest, len(deaths))))
}

// Up to which number a point is drawn blindly is drawn itself, between the fewest and the most, so that most
// draws come at once in short scenarios, too. No scenario has more points than the most.
const fewestBlind, mostBlind = 16, 128

// blind is a death at a point that is not known yet. Nil: all deaths are tried, and need to be known.
func (s sample) blind(sc scenario) *crash {
	if s.All {
		return nil
	}
	of := fewestBlind << s.One(sc.name+", of", bits.Len(mostBlind/fewestBlind))
	kinds := sc.ways()
	return &crash{turn: 1 + s.One(sc.name+", point", of), way: kinds[s.One(sc.name+", way", len(kinds))]}
}

// TestBlind: every point may be drawn, in each way.
func TestBlind(t *testing.T) {
	for _, sc := range []scenario{{name: "alone"}, {name: "with a plug-in", plugIn: theManager}} {
		seen := map[crash]bool{}
		for seed := range uint64(20_000) {
			c := *sample{lot.Lot{Seed: seed}}.blind(sc)
			seen[c] = true
			if c.turn < 1 || c.turn > mostBlind {
				t.Fatalf("with seed %d, point %d is drawn", seed, c.turn)
			}
		}
		if want := mostBlind * len(sc.ways()); len(seen) != want {
			t.Errorf("%s: %d deaths are drawn, not %d", sc.name, len(seen), want)
		}
		if c := (sample{lot.Lot{All: true}}).blind(sc); c != nil {
			t.Errorf("%s: of all, %s is drawn", sc.name, c)
		}
	}
}

// TestScenariosAreDrawn: a third of them is played, and with many seeds all are.
func TestScenariosAreDrawn(t *testing.T) {
	all, seen := everywhere(), map[string]bool{}
	for seed := range uint64(200) {
		chosen := sample{lot.Lot{Seed: seed}}.scenarios(all)
		if want := (len(all) + 2) / 3; len(chosen) != want {
			t.Fatalf("%d scenarios are played of %d, not %d", len(chosen), len(all), want)
		}
		for _, s := range chosen {
			seen[s.name] = true
		}
	}
	if len(seen) != len(all) {
		t.Errorf("%d scenarios of %d are never played", len(all)-len(seen), len(all))
	}
	if chosen := (sample{lot.Lot{All: true}}).scenarios(all); len(chosen) != len(all) {
		t.Errorf("%d scenarios of all %d", len(chosen), len(all))
	}
}

// TestSampleIsSpread: the deaths that are tried come from all over a scenario, are the same
// for the same seed, and with many seeds are all there are.
func TestSampleIsSpread(t *testing.T) {
	var points []point
	for i := range 100 {
		points = append(points, point{operation{"api", "patch", "machines"}, i + 1})
	}
	deaths := crashes(points)
	seen := map[crash]bool{}
	for seed := range uint64(1000) {
		chosen := sample{lot.Lot{Seed: seed}}.of(deaths)
		if len(chosen) != len(deaths)/oneOf {
			t.Fatalf("%d deaths are tried of %d", len(chosen), len(deaths))
		}
		for i, c := range (sample{lot.Lot{Seed: seed}}).of(deaths) {
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
	if chosen := (sample{lot.Lot{All: true}}).of(deaths); len(chosen) != len(deaths) {
		t.Errorf("%d deaths of all %d", len(chosen), len(deaths))
	}
}
