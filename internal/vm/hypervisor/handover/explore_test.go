package handover

import (
	"errors"
	"testing"

	"github.com/millwright-dev/millwright/test/support/explore"
)

var (
	errTwoGuests = errors.New("two guests are running")
	errNoGuest   = explore.ErrStuck // no guest will ever run
)

// atMostOne returns a check that at most one guest is running.
func atMostOne[W any](guests func(W) int) func(W) error {
	return func(w W) error {
		if guests(w) > 1 {
			return errTwoGuests
		}
		return nil
	}
}

// model returns the model of a migration without leases.
func (r rules) model() explore.Model[world] {
	return explore.Model[world]{
		Start: start(), Edges: r.edges, Check: atMostOne(world.guests), Good: func(w world) bool { return w.guests() == 1 },
	}
}

// Two and three hypervisors: messages are lost, duplicated, delayed and reordered at every point, and processes
// crash and restart.
func TestModel_AtMostOneGuestRuns(t *testing.T) {
	for name, test := range map[string]struct {
		rules rules
		least int
	}{
		"two, no crash":      {rules{targets: 1}, 81},
		"three, no crash":    {rules{targets: 2}, 1398},
		"two, three crashes": {rules{targets: 1, crashes: 3, givesUp: true}, 1541},
		"three, one crash":   {rules{targets: 2, crashes: 1, givesUp: true}, 28_918},
	} {
		t.Run(name, func(t *testing.T) {
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
func TestModel_EachGuardIsNecessary(t *testing.T) {
	calm := rules{targets: 1}
	for name, test := range map[string]struct {
		rules rules
		// The following fields change the transitions.
		source map[SourceState]map[SourceEvent]sourceStep
		target map[TargetState]map[TargetEvent]targetStep
		want   error
	}{
		"the target waits for the commit":        {rules: rules{targets: 1, noCommit: true}, want: errTwoGuests},
		"the source takes a new run ID":          {rules: rules{targets: 1, oldRun: true}, want: errTwoGuests},
		"the controller compares":                {rules: rules{targets: 1, noSwap: true}, want: errTwoGuests},
		"the controller repeats a lost response": {rules: rules{targets: 1, noRepeat: true}, want: errNoGuest},
		"no response is not a grant": {
			rules: calm, want: errTwoGuests,
			target: map[TargetState]map[TargetEvent]targetStep{Switching: {Unanswered: {Arrived, Run}}},
		},
		"no response is not a refusal": {
			rules: calm, want: errNoGuest,
			target: map[TargetState]map[TargetEvent]targetStep{Switching: {Unanswered: {Gone, Exit}}},
		},
		"a refusal is final": {
			rules: calm, want: errTwoGuests,
			target: map[TargetState]map[TargetEvent]targetStep{Switching: {Refused: {Arrived, Run}}},
		},
		"the target asks before it runs": {
			rules: calm, want: errTwoGuests,
			target: map[TargetState]map[TargetEvent]targetStep{Incoming: {Received: {Arrived, Run}}},
		},
		"the source asks before it runs again": {
			rules: calm, want: errTwoGuests,
			source: map[SourceState]map[SourceEvent]sourceStep{Awaiting: {TimeOver: {Running, Resume}}},
		},
		"QEMU's failure decides nothing after the commit": {
			rules: calm, want: errTwoGuests,
			source: map[SourceState]map[SourceEvent]sourceStep{Awaiting: {Failed: {Asking, AbandonAndAsk}}},
		},
		"the migration cannot be cancelled after the commit": {
			rules: calm, want: errTwoGuests,
			source: map[SourceState]map[SourceEvent]sourceStep{Awaiting: {Cancelled: {Running, Abandon}}},
		},
		"no response is not a grant for the source": {
			rules: calm, want: errTwoGuests,
			source: map[SourceState]map[SourceEvent]sourceStep{Reclaiming: {Unknown: {Running, Resume}}},
		},
		"no response is not a refusal for the source": {
			rules: calm, want: errNoGuest,
			source: map[SourceState]map[SourceEvent]sourceStep{Reclaiming: {Unknown: {Left, Kill}}},
		},
		"the termination of the old run does not concern the new one": {
			rules: calm, want: errNoGuest,
			source: map[SourceState]map[SourceEvent]sourceStep{Reclaiming: {Terminated: {Left, Kill}}},
		},
		"a source takes its guest back": {
			rules: calm, want: errNoGuest,
			source: map[SourceState]map[SourceEvent]sourceStep{Awaiting: {TimeOver: {Awaiting, Nothing}}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			restoreSource := replace(sourceSteps, test.source)
			defer restoreSource()
			restoreTarget := replace(targetSteps, test.target)
			defer restoreTarget()
			_, err := test.rules.model().Explore()
			if !errors.Is(err, test.want) {
				t.Fatalf("error = %v, want %v", err, test.want)
			}
			t.Log(err)
		})
	}
}

// replace changes some transitions until restore is called.
func replace[S, E comparable, T any](all, some map[S]map[E]T) (restore func()) {
	var undo []func()
	for state, steps := range some {
		for event, step := range steps {
			before, existed := all[state][event]
			all[state][event] = step
			undo = append(undo, func() {
				if all[state][event] = before; !existed {
					delete(all[state], event)
				}
			})
		}
	}
	return func() {
		for _, each := range undo {
			each()
		}
	}
}
