package crash

import (
	"os"
	"sync"
	"testing"
	"time"

	"github.com/millwright-dev/millwright/test/env"
)

const (
	// every is which part of the deaths is tried unless all are asked for: every so-and-
	// so-many-th, which suits a test run of three minutes.
	every = 5
	// tries is how many runs may take place for one death.
	tries = 3
	// hitShare is the part of the planned points that must have been reached.
	hitShare = 0.95
)

// TestExplore kills the manager at every point of every scenario, one after another, or at
// every fifth unless MILLWRIGHT_CRASH is "all".
func TestExplore(t *testing.T) {
	step := every
	if os.Getenv("MILLWRIGHT_CRASH") == "all" {
		step = 1
	}
	fleet := newFleet(t)
	planned, hit := 0, 0
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			p, h := fleet.explore(t, s, step)
			planned, hit = planned+p, hit+h
		})
	}
	t.Logf("all scenarios: %d deaths planned, %d at their point", planned, hit)
	if float64(hit) < hitShare*float64(planned) {
		t.Errorf("only %d of %d planned points were reached", hit, planned)
	}
}

// fleet is the lanes that are free.
type fleet chan *lane

// newFleet makes lanes of both clusters of a pair: there, they are no pair.
func newFleet(t *testing.T) fleet {
	t.Helper()
	pair := env.NewPair(t)
	f := make(fleet, 2)
	f <- &lane{pair.Cluster}
	f <- &lane{pair.Target}
	return f
}

// play plays a scenario on the next lane that is free.
func (f fleet) play(t *testing.T, s scenario, plan *crash, broken fault) result {
	t.Helper()
	l := <-f
	defer func() { f <- l }()
	return l.play(t, s, plan, broken)
}

// die plays a scenario with a death, and tells whether that came. A point that comes up by
// chance only, since work goes on in parallel, is waited for in several runs.
func (l *lane) die(t *testing.T, s scenario, c *crash) (reached bool) {
	for range tries {
		result := l.play(t, s, c, sound)
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

// explore records a scenario and plays it again for every step-th death.
func (f fleet) explore(t *testing.T, s scenario, step int) (planned, hit int) {
	recorded := f.play(t, s, nil, sound)
	if recorded.err != nil {
		t.Fatalf("without a crash: %v\n%s", recorded.err, recorded.transcript)
	}
	all := crashes(recorded.points)
	began := time.Now()
	var wait sync.WaitGroup
	var mu sync.Mutex
	for i := 0; i < len(all); i += step {
		l := <-f
		wait.Go(func() {
			defer func() { f <- l }()
			t.Run(all[i].String(), func(t *testing.T) {
				reached := l.die(t, s, &all[i])
				mu.Lock()
				defer mu.Unlock()
				planned++
				if reached {
					hit++
				}
			})
		})
	}
	wait.Wait()
	took := time.Since(began).Seconds()
	t.Logf("%d points recorded; %d deaths planned of %d, %d at their point; %.1f s, %.2f s each",
		len(recorded.points), planned, len(all), hit, took, took/float64(max(planned, 1)))
	return planned, hit
}
