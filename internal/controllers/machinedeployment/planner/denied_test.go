package planner

import (
	"testing"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/fixture"
)

// TestASetThatIsNotScaledDownIsStillToBe: in a rollout, all sets say for which size they were
// scaled, and that is how it is known that the deployment was scaled.
func TestASetThatIsNotScaledDownIsStillToBe(t *testing.T) {
	t.Parallel()
	f := NewFacts(fixture.Deployment(4, fixture.Rolling("1", "0"), fixture.OfClass("b")), sets{fixture.Set("a", 6, fixture.WithUID, fixture.ScaledFor(8, 9)), fixture.Set("b", 3, fixture.WithUID, fixture.ScaledFor(8, 9))}, fixture.Noon)
	f.Named = []Named{{"m-1", fixture.Later, fixture.Member(f.Old[0], "m-1")}}
	for _, op := range Plan(f) {
		if op.Set != f.Old[0] || op.Action == Mark {
			continue
		}
		if op.Action != Refresh {
			t.Errorf("the old set: %s", op.Action)
		}
		if got := op.Next.Annotations[v1alpha1.AnnotationKeyDesiredReplicas]; got != "8" {
			t.Errorf("it says that it was scaled for %s", got)
		}
	}
}
