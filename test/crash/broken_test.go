package crash

import (
	"errors"
	"slices"
	"testing"
)

// fromDriver leaves out the points before the driver is asked first: none of the builds does
// anything wrong there.
func fromDriver(points []point) []point {
	first := slices.IndexFunc(points, func(p point) bool { return p.server == "driver" })
	return points[max(first, 0):]
}

// TestBrokenBuildsAreFound: for every invariant, a build that breaks it, and only when its
// manager dies at the wrong moment, is found.
func TestBrokenBuildsAreFound(t *testing.T) {
	fleet := newFleet(t)
	s := scenarios[1] // the shortest one in which a VM is made
	for _, tc := range []struct {
		broken    fault
		invariant string
		want      error
	}{
		{doubles, "one instance for a Machine", errTwoVMs},
		{remembers, "convergence; no instance after deletion", errLeft},
		{keepsTokens, "convergence; no token is left", errToken},
		{tells, "no secret value gets out", errLeak},
	} {
		t.Run(string(tc.broken), func(t *testing.T) {
			t.Parallel()
			whole := fleet.play(t, s, nil, tc.broken)
			if whole.err != nil {
				t.Fatalf("it fails without a crash too: %v\n%s", whole.err, whole.transcript)
			}
			all := crashes(fromDriver(whole.points))
			for i, c := range all {
				result := fleet.play(t, s, &c, tc.broken)
				switch {
				case errors.Is(result.err, tc.want):
					t.Logf("%s: found at death %d of %d, %s: %v", tc.invariant, i+1, len(all), c, result.err)
					return
				case result.err != nil:
					t.Logf("death %d, %s: something else: %v", i+1, c, result.err)
				}
			}
			t.Errorf("%s: not found by any of %d deaths", tc.invariant, len(all))
		})
	}
}
