package lease

import (
	"errors"
	"testing"

	"github.com/millwright-dev/millwright/test/support/explore"
	"github.com/millwright-dev/millwright/test/support/tier"
)

var (
	errTwoGuests = errors.New("two guests are running")
	errNoGuest   = explore.ErrStuck // no guest will ever run
)

// explore visits all reachable worlds.
func (r rules) explore() (int, error) {
	return explore.Model[world]{
		Start: start(r), Edges: r.edges,
		Check: func(w world) error {
			if r.guests(w) > 1 {
				return errTwoGuests
			}
			return nil
		},
		Good: func(w world) bool { return r.runs(w.processes[w.holder]) && states[w.state] == Open },
	}.Explore()
}

// Two and three hypervisors: messages are lost, duplicated, delayed and reordered at every point, processes are
// paused, crash and restart, Pods appear to be gone, and two controllers believe that they are the leader.
func TestModel_AtMostOneGuestRuns(t *testing.T) {
	for name, test := range map[string]struct {
		rules rules
		least int
		// long reports whether the exploration takes more than a second.
		long bool
	}{
		"two":                  {rules{processes: 2, granters: 1, crashes: 2}, 81_648, false},
		"two, slow holders":    {rules{processes: 2, granters: 1, crashes: 1, holderRate: -1, granterRate: 1}, 54_432, false},
		"two, fast holders":    {rules{processes: 2, granters: 1, crashes: 1, holderRate: 1, granterRate: -1}, 54_432, false},
		"two, two controllers": {rules{processes: 2, granters: 2, crashes: 1, holderRate: -1, granterRate: 1}, 358_452, true},
		"three, slow holders":  {rules{processes: 3, granters: 1, crashes: 1, single: true, holderRate: -1, granterRate: 1}, 389_286, true},
		"three":                {rules{processes: 3, granters: 1}, 367_416, true},
	} {
		t.Run(name, func(t *testing.T) {
			if test.long {
				tier.All(t)
			}
			count, err := test.rules.explore()
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
	slow := func(change func(*rules)) rules {
		r := rules{processes: 2, granters: 1, crashes: 1, holderRate: -1, granterRate: 1}
		change(&r)
		return r
	}
	for name, test := range map[string]struct {
		rules rules
		want  error
	}{
		"the controller waits for slower clocks":                    {slow(func(r *rules) { r.noMargin = true }), errTwoGuests},
		"a watchdog kills the guest of a paused process":            {slow(func(r *rules) { r.noWatchdog = true }), errTwoGuests},
		"the holder measures from its request":                      {slow(func(r *rules) { r.fromReceipt = true }), errTwoGuests},
		"the controller reads the stored record":                    {slow(func(r *rules) { r.cachedReads = true }), errTwoGuests},
		"the lease is barred before it is handed on":                {slow(func(r *rules) { r.noBar = true }), errTwoGuests},
		"each barred period is measured separately":                 {slow(func(r *rules) { r.sameBar = true }), errTwoGuests},
		"another controller waits again":                            {slow(func(r *rules) { r.noWait = true }), errTwoGuests},
		"a suspected holder is opened again before it gets a lease": {slow(func(r *rules) { r.noReopen = true }), errTwoGuests},
		"a revoked holder gets no lease":                            {slow(func(r *rules) { r.revokedToo = true }), errTwoGuests},
		"the guest terminates before its lease is released":         {slow(func(r *rules) { r.earlyRelease = true }), errTwoGuests},
		"a silent holder is suspected":                              {slow(func(r *rules) { r.noSuspicion = true }), errNoGuest},
	} {
		t.Run(name, func(t *testing.T) {
			count, err := test.rules.explore()
			if !errors.Is(err, test.want) {
				t.Fatalf("after %d states: error = %v, want %v", count, err, test.want)
			}
			t.Log(err)
		})
	}
}
