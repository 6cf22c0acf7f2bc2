package planner

import (
	"testing"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// TestASetThatIsNotScaledDownIsStillToBe: in a rollout, all sets say for which size they were
// scaled, and that is how it is known that the deployment was scaled.
func TestASetThatIsNotScaledDownIsStillToBe(t *testing.T) {
	t.Parallel()
	f := NewFacts(newDeployment(4, rolling("1", "0"), class("b")), sets{setOf("a", 6, withUID, scaledFor(8, 9)), setOf("b", 3, withUID, scaledFor(8, 9))}, noon)
	f.Named = []Named{{"m-1", later, member(f.Old[0], "m-1")}}
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
