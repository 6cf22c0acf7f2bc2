package crash

import (
	"fmt"
	"testing"
)

// troubled are the names of the scenarios that are played under every fault of an API server.
var troubled = []string{
	"rolling update", "create, apart", "delete with drain, apart", "scale down by name", "capi create", "capi delete amid creation",
}

// TestFaults plays scenarios with API servers, of both clusters, that misbehave, and holds them
// against the same rules as without: all scenarios if MILLWRIGHT_CRASH is "all", else one.
func TestFaults(t *testing.T) {
	sample, fleet := newSample(t), newFleet(t)
	for i, fault := range serverFaults(sample.seed) {
		t.Run(fault.name, func(t *testing.T) {
			t.Parallel()
			t.Attr("fault", "an API server that "+fault.name)
			names := troubled
			if !sample.all {
				names = []string{troubled[i%len(troubled)]}
			}
			for _, name := range names {
				if err := fleet.trouble(t, name, fault); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
			if fault.struck.Load() == 0 {
				t.Error("no request was concerned")
			}
			t.Attr("outcome", fmt.Sprintf("%d scenarios, %d requests of %d struck", len(names), fault.struck.Load(), fault.asked.Load()))
		})
	}
}

// trouble plays a scenario under a fault.
func (f fleet) trouble(t *testing.T, name string, fault *serverFault) error {
	s := called(name)
	s.fault = fault
	whole := f.play(t, s, nil, sound)
	if whole.err != nil {
		return fmt.Errorf("%w\n%s", whole.err, whole.transcript)
	}
	if !fault.killed {
		return nil
	}
	deaths := crashes(whole.points)
	death := deaths[len(deaths)/2]
	if killed := f.play(t, s, &death, sound); killed.err != nil {
		return fmt.Errorf("killed %s: %w\n%s", death, killed.err, killed.transcript)
	}
	return nil
}
