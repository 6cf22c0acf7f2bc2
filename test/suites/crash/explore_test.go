package crash

import (
	"fmt"
	"testing"

	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/tier"
)

const (
	// tries is the maximum number of runs for one crash point.
	tries = 3
	// hitShare is the fraction of the planned points that must be reached. In a sample of about a hundred, a few
	// more may be missed if CPU time is scarce.
	hitShare, hitShareOfSample = 0.95, 0.85
)

// TestExplore kills the manager at points of each scenario, one after another: at all points in an exhaustive
// run, otherwise at a fixed sample.
func TestExplore(t *testing.T) {
	tier.All(t)
	fleet, scenarios := newFleet(t), everywhere()
	total, earlier := newProgress(len(scenarios)), readSurvived(t)
	t.Attr("fault", "The manager is killed before, during, or after an API write or a driver call")
	t.Cleanup(func() { // when all subtests are complete
		t.Attr("outcome", fmt.Sprintf("The next manager reaches the desired state after each crash (%d scenarios, %d crash points)", len(scenarios), total.hit))
		t.Logf("%d scenarios: %d crash points planned, %d at their point; %d skipped, because they are equivalent to others",
			len(scenarios), total.planned, total.hit, total.left)
		total.end()
		share := hitShareOfSample
		if tier.Exhaustive() {
			share = hitShare
		}
		if float64(total.hit) < share*float64(total.planned) {
			t.Errorf("only %d of %d planned points were reached", total.hit, total.planned)
		}
	})
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			fleet.explore(t, s, total, earlier)
		})
	}
}

// fleet contains the free lanes.
type fleet chan *lane

// newFleet creates lanes on both clusters of each pair.
func newFleet(t *testing.T) fleet {
	t.Helper()
	pairs := make([]*env.Env, pairsOfClusters())
	for i := range pairs {
		pairs[i] = env.NewPair(t, env.WithNumber(i))
	}
	f := make(fleet, 2*len(pairs))
	for _, pair := range pairs {
		one, other := withAllKinds(t, pair.Cluster), withAllKinds(t, pair.Target)
		f <- &lane{nodes: one, other: other}
		f <- &lane{nodes: other, other: one}
	}
	return f
}

// newFleetOfOne creates a single lane, on one cluster.
func newFleetOfOne(t *testing.T) fleet {
	t.Helper()
	f := make(fleet, 1)
	f <- &lane{nodes: withAllKinds(t, env.New(t).Cluster)}
	return f
}

// pairsOfClusters is the number of pairs of control planes, with two lanes each. A run mostly waits, so twice the
// lanes halve the total time.
func pairsOfClusters() int {
	if tier.Exhaustive() {
		return 2
	}
	return 1
}

// play runs a scenario on the next free lane.
func (f fleet) play(t *testing.T, s scenario, plan *crash, broken fault) result {
	t.Helper()
	l := <-f
	defer func() { f <- l }()
	return l.play(t, s, plan, broken)
}

// die runs a scenario with a crash, and reports whether the crash point was reached. Since work is done in
// parallel, some points occur only in some runs, so several runs are tried.
func (f fleet) die(t *testing.T, s scenario, c *crash) (reached bool) {
	for range tries {
		result := f.play(t, s, c, sound)
		if result.err != nil {
			t.Errorf("killed %s: %v\n%s", c, result.err, result.transcript)
		}
		if result.hit || result.err != nil {
			return result.hit
		}
	}
	t.Logf("the point was not reached in %d runs", tries)
	return false
}

// explore records a scenario, and runs it again for each sampled crash point. Crash points that were survived
// earlier count, and are not tried again.
func (f fleet) explore(t *testing.T, s scenario, total *progress, earlier *survived) {
	recorded := f.play(t, s, nil, sound)
	if recorded.err != nil {
		t.Fatalf("without a crash: %v\n%s", recorded.err, recorded.transcript)
	}
	all := recorded.crashPoints
	crashPoints := sampleOf(s.name, all)
	left := len(leftOut(recorded.points, all))
	own := total.scenario(s.name, len(crashPoints), left)
	t.Cleanup(func() { // when all subtests are complete
		t.Logf("%d points recorded; %d of %d distinct crash points planned, %d reached; %d more are equivalent to these",
			len(recorded.points), len(crashPoints), len(all), own.hit, left)
	})
	for _, c := range crashPoints {
		if earlier.has(s, c) {
			own.count(true)
			continue
		}
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			hit := f.die(t, s, &c)
			if hit && !t.Failed() {
				earlier.note(t, s, c)
			}
			own.count(hit)
		})
	}
}
