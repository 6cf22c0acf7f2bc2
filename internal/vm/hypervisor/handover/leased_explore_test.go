package handover

import (
	"errors"
	"testing"

	"github.com/millwright-dev/millwright/test/support/explore"
	"github.com/millwright-dev/millwright/test/support/tier"
)

func (r leasedRules) model() explore.Model[leased] {
	return explore.Model[leased]{
		Start: leasedStart(), Edges: r.edges, Good: func(w leased) bool { return w.good() },
		Check: atMostOne(func(w leased) int { return w.guests() }),
	}
}

// A guest with leases that expire migrates. Messages are lost, duplicated, delayed and reordered at every point,
// processes are paused, crash and restart, Pods appear to be gone, and two controllers believe that they are the
// leader.
func TestLeasedModel_AtMostOneGuestRuns(t *testing.T) {
	for name, test := range map[string]struct {
		rules leasedRules
		least int
		// long reports whether the exploration takes more than a second.
		long bool
	}{
		"no crash":                   {leasedRules{arbiters: 1, migrations: 1}, 71_000, false},
		"slow hypervisors":           {leasedRules{arbiters: 1, migrations: 1, crashes: 1, partyRate: -1, arbiterRate: 1}, 443_000, true},
		"fast hypervisors":           {leasedRules{arbiters: 1, migrations: 1, crashes: 1, partyRate: 1, arbiterRate: -1}, 255_000, true},
		"two controllers":            {leasedRules{arbiters: 2, migrations: 1, partyRate: -1, arbiterRate: 1}, 678_000, true},
		"there and back":             {leasedRules{arbiters: 1, migrations: 2}, 738_000, true},
		"the target asks beforehand": {leasedRules{arbiters: 1, migrations: 1, early: true}, 79_000, false},
	} {
		t.Run(name, func(t *testing.T) {
			if test.long {
				tier.All(t)
			}
			count, err := test.rules.model().Explore()
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

// Each guard is necessary: without it, the exploration finds the situation that it prevents.
func TestLeasedModel_EachGuardIsNecessary(t *testing.T) {
	slow := func(change func(*leasedRules)) leasedRules {
		r := leasedRules{arbiters: 1, migrations: 1, crashes: 1, partyRate: -1, arbiterRate: 1}
		change(&r)
		return r
	}
	calm := slow(func(r *leasedRules) { r.crashes = 0 })
	for name, test := range map[string]struct {
		rules leasedRules
		// The following fields change the transitions.
		source map[SourceState]map[SourceEvent]sourceStep
		target map[TargetState]map[TargetEvent]targetStep
		want   error
	}{
		"the target waits for the commit":                {rules: slow(func(r *leasedRules) { r.noCommit = true }), want: errTwoGuests},
		"the source takes a new run ID":                  {rules: slow(func(r *leasedRules) { r.oldRun = true }), want: errTwoGuests},
		"the switchover compares":                        {rules: slow(func(r *leasedRules) { r.noSwap = true }), want: errTwoGuests},
		"handing on a lease compares":                    {rules: slow(func(r *leasedRules) { r.blind = true }), want: errTwoGuests},
		"a watchdog kills the guest of a paused process": {rules: slow(func(r *leasedRules) { r.noWatchdog = true }), want: errTwoGuests},
		"the controller waits for slow clocks":           {rules: slow(func(r *leasedRules) { r.noMargin = true }), want: errTwoGuests},
		"a lease is barred before it is handed on":       {rules: slow(func(r *leasedRules) { r.noBar = true }), want: errTwoGuests},
		"another controller waits again":                 {rules: slow(func(r *leasedRules) { r.noWait = true }), want: errTwoGuests},
		"the target waits for its lease": {
			rules: calm, want: errTwoGuests,
			target: map[TargetState]map[TargetEvent]targetStep{Switching: {SwitchedOver: {Arrived, Run}}},
		},
		"the source waits for its new lease and remembers when the old one expires": {
			rules: slow(func(r *leasedRules) { r.forgetful = true }), want: errTwoGuests,
			source: map[SourceState]map[SourceEvent]sourceStep{Reclaiming: {Granted: {Running, Resume}}},
		},
		"a lease that arrives after the commit does not continue the guest": {
			rules: calm, want: errTwoGuests,
			source: map[SourceState]map[SourceEvent]sourceStep{Awaiting: {Leased: {Running, Resume}}},
		},
		"the migration cannot be cancelled after the commit": {
			rules: calm, want: errTwoGuests,
			source: map[SourceState]map[SourceEvent]sourceStep{Awaiting: {Cancelled: {Running, Abandon}}},
		},
		"QEMU's failure decides nothing after the commit": {
			rules: calm, want: errTwoGuests,
			source: map[SourceState]map[SourceEvent]sourceStep{Awaiting: {Failed: {Asking, AbandonAndAsk}}},
		},
		"the source asks before it runs again": {
			rules: calm, want: errTwoGuests,
			source: map[SourceState]map[SourceEvent]sourceStep{Awaiting: {TimeOver: {Running, Resume}}},
		},
		"no response is not a grant for the source": {
			rules: calm, want: errTwoGuests,
			source: map[SourceState]map[SourceEvent]sourceStep{Reclaiming: {Unknown: {Running, Resume}}},
		},
		"the target asks before it runs": {
			rules: calm, want: errTwoGuests,
			target: map[TargetState]map[TargetEvent]targetStep{Incoming: {Received: {Arrived, Run}}},
		},
		"a target without a lease stops waiting when it loses the authority": {
			rules: calm, want: errTwoGuests,
			target: map[TargetState]map[TargetEvent]targetStep{Authorized: {Ended: {Arrived, Run}}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			restoreSource := replace(sourceSteps, test.source)
			defer restoreSource()
			restoreTarget := replace(targetSteps, test.target)
			defer restoreTarget()
			count, err := test.rules.model().Explore()
			if !errors.Is(err, test.want) {
				t.Fatalf("after %d states: error = %v, want %v", count, err, test.want)
			}
			t.Log(err)
		})
	}
}
