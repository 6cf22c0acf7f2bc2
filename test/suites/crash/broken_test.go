package crash

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/test/support/tier"
)

// from skips the crash points before the first operation with the given prefix, where none of the builds
// misbehaves.
func from(crashPoints []crash, first string) []crash {
	at := slices.IndexFunc(crashPoints, func(c crash) bool { return strings.HasPrefix(c.point.operation.String(), first) })
	return crashPoints[max(at, 0):]
}

// brokenBuild is a build that violates an invariant.
type brokenBuild struct {
	broken    fault
	invariant string
	// scenario is the scenario that is run, beginning with an operation.
	scenario, from string
	want           error
}

// TestCrash_BrokenBuildsAreFound checks, for every invariant, that a build is found that violates it only when its
// manager crashes at the wrong moment.
func TestCrash_BrokenBuildsAreFound(t *testing.T) {
	tier.All(t)
	fleet := newFleet(t)
	for _, tc := range []brokenBuild{
		{doubles, "one instance for a Machine", "create with initialize", "driver CreateMachine", errTwoVMs},
		{doubles, "one instance for a Machine, by a plug-in", "plug-in, create: the plug-in dies", "driver CreateMachine", errTwoVMs},
		{remembers, "convergence; no instance after deletion", "create with initialize", "driver CreateMachine", errLeft},
		{keepsTokens, "convergence; no token is left", "create with initialize", "driver CreateMachine", errToken},
		{repeatsRequest, "no secret value gets out", "create with initialize", "driver CreateMachine", errLeak},
		{overlooks, "no more machines than the surge allows", "rolling update", "driver CreateMachine", errTooMany},
		{boasts, "as many available as have to be", "rolling update", "driver CreateMachine", errTooFew},
		{unmarks, "the machine that was named goes, and no other", "scale down by name", "api patch machinesets ", errVictim},
		{thaws, "a frozen set creates nothing", "frozen", "api patch machinesets ", errFrozen},
		{forgets, "no instance after deletion", "capi delete amid creation", "driver CreateMachine", errLeft},
		{evictsNone, "a drain evicts", "delete with drain", "api patch nodes ", errNotEvicted},
	} {
		t.Run(string(tc.broken)+" in "+tc.scenario, func(t *testing.T) {
			t.Parallel()
			s := called(tc.scenario)
			if tc.broken == forgets {
				s.onCrash = removalAsked // otherwise the first view of the next manager would be random
			}
			whole := fleet.play(t, s, nil, tc.broken)
			if whole.err != nil {
				t.Fatalf("it fails without a crash too: %v\n%s", whole.err, whole.transcript)
			}
			all := from(whole.crashPoints, tc.from)
			for i, c := range all {
				result := fleet.play(t, s, &c, tc.broken)
				switch {
				case errors.Is(result.err, tc.want):
					t.Logf("%s: found at crash point %d of %d, %s: %v", tc.invariant, i+1, len(all), c, result.err)
					return
				case result.err != nil:
					t.Logf("crash point %d, %s: something else: %v", i+1, c, result.err)
				}
			}
			t.Errorf("%s: not found by any of %d crash points", tc.invariant, len(all))
		})
	}
}
