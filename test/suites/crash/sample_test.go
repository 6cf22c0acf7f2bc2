package crash

import (
	"hash/fnv"
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/test/support/tier"
)

// oneOf is the sampling rate of crash points in a run that is not exhaustive: one in so many, in each scenario. A
// crash costs one second of CPU time.
const oneOf = 64

// sampleOf selects crash points of a scenario: all in an exhaustive run, and otherwise every oneOf-th, but at
// least one. The first one depends only on the scenario's name, so that scenarios do not all crash at the same
// stage.
func sampleOf(name string, crashPoints []crash) []crash {
	if tier.Exhaustive() || len(crashPoints) == 0 {
		return crashPoints
	}
	hash := fnv.New32a()
	hash.Write([]byte(name))
	var chosen []crash
	for i := int(hash.Sum32()) % min(oneOf, len(crashPoints)); i < len(crashPoints); i += oneOf {
		chosen = append(chosen, crashPoints[i])
	}
	return chosen
}

// partOf returns all names in an exhaustive run, and otherwise the first ones.
func partOf(names []string, first int) []string {
	if tier.Exhaustive() {
		return names
	}
	return names[:first]
}

// TestSample_IsSpreadAndDeterministic checks that the sampled crash points are spread over a scenario, and are the same in each
// run.
func TestSample_IsSpreadAndDeterministic(t *testing.T) {
	var points []point
	for i := range 100 {
		points = append(points, point{operation{"api", "patch", "machines"}, i + 1})
	}
	crashPoints, begins := crashes(points), map[crash]bool{}
	for _, s := range everywhere() {
		t.Setenv(tier.Variable, "all")
		chosen := sampleOf(s.name, crashPoints)
		begins[chosen[0]] = true
		for i, c := range chosen {
			if again := sampleOf(s.name, crashPoints)[i]; c != again {
				t.Errorf("%s: crash point %d is %s and then %s", s.name, i, c, again)
			}
		}
		if least, most := len(crashPoints)/oneOf, len(crashPoints)/oneOf+1; len(chosen) < least || len(chosen) > most {
			t.Errorf("%s: %d of %d crash points", s.name, len(chosen), len(crashPoints))
		}
		if few := sampleOf(s.name, crashPoints[:3]); len(few) != 1 {
			t.Errorf("%s: %d crash points of three", s.name, len(few))
		}
		t.Setenv(tier.Variable, "exhaustive")
		if got := sampleOf(s.name, crashPoints); len(got) != len(crashPoints) {
			t.Errorf("%s: an exhaustive run tries %d of %d crash points", s.name, len(got), len(crashPoints))
		}
	}
	if len(begins) < oneOf/2 {
		t.Errorf("all samples begin at one of %d crash points", len(begins))
	}
}

// TestRollingUpdate_KilledAtThreePoints kills the manager after it has created an instance, cordoned a node, and
// deleted an instance, each time before it receives the response.
func TestRollingUpdate_KilledAtThreePoints(t *testing.T) {
	fleet := newFleetOfOne(t)
	s := called("rolling update")
	whole := fleet.play(t, s, nil, sound)
	if whole.err != nil {
		t.Fatalf("without a crash: %v\n%s", whole.err, whole.transcript)
	}
	for _, operation := range []string{"driver CreateMachine ", "api patch nodes ", "driver DeleteMachine "} {
		t.Run(strings.TrimSpace(operation), func(t *testing.T) {
			t.Parallel()
			for _, p := range whole.points {
				if strings.HasPrefix(p.operation.String(), operation) {
					if !fleet.die(t, s, &crash{point: p, way: lost}) {
						t.Errorf("%s was not reached", p)
					}
					return
				}
			}
			t.Error("the rolling update has no such operation")
		})
	}
}
