package rollout

import (
	"fmt"
	"testing"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// TestOutcome_MarkError checks that the message about Machines that cannot be marked has the errors of three of them
// and counts the others.
func TestOutcome_MarkError(t *testing.T) {
	t.Parallel()
	const three = "m0\nm1\nm2"
	for failed, want := range []string{"", "m0", "m0\nm1", three, three + "\nand 1 more", three + "\nand 2 more"} {
		var o Outcome
		for i := range failed {
			o.Unmarked = append(o.Unmarked, fmt.Errorf("m%d", i))
		}
		got := ""
		if err := o.MarkError(); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%d failed: %q, want %q", failed, got, want)
		}
	}
}

// TestOutcome_Reused checks that an old set counts as the new one of another rollout when it gets the next revision.
// Changes to its size or to other sets begin no rollout.
func TestOutcome_Reused(t *testing.T) {
	t.Parallel()
	for reason, test := range map[string]struct {
		current *v1alpha1.MachineSet
		outcome Outcome
		want    bool
	}{
		"it got the next revision": {fixture.Set("b", 1), written(fixture.Set("b", 1, fixture.OfRevision("3"))), true},
		"it was scaled":            {fixture.Set("b", 1), written(fixture.Set("b", 2)), false},
		"another one was changed":  {fixture.Set("b", 1), written(fixture.Set("a", 1, fixture.OfRevision("3"))), false},
		"no set has the template":  {nil, written(fixture.Set("a", 1)), false},
		"a new one was created":    {nil, Outcome{Created: fixture.Set("b", 1, fixture.OfRevision("3"))}, false},
	} {
		r := New(Facts{Deployment: fixture.Deployment(1), Current: test.current})
		if got := test.outcome.Reused(r); got != test.want {
			t.Errorf("%s: %t, want %t", reason, got, test.want)
		}
	}
}

// written returns the outcome of a pass that changed one set.
func written(set *v1alpha1.MachineSet) Outcome {
	return Outcome{Written: map[string]*v1alpha1.MachineSet{set.Name: set}}
}
