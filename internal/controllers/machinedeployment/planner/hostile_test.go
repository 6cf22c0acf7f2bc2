package planner

import (
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/fixture"
)

// TestTheHistoryOfRevisionsIsBounded: the oldest numbers go.
func TestTheHistoryOfRevisionsIsBounded(t *testing.T) {
	t.Parallel()
	set := fixture.Set("a", 0, fixture.OfRevision("77"))
	set.Annotations[v1alpha1.AnnotationKeyRevisionHistory] = "1,2," + strings.Repeat("300,", 600) + "76"
	setRevision(set, 100)
	got := set.Annotations[v1alpha1.AnnotationKeyRevisionHistory]
	if len(got) > longestHistory || len(got) < longestHistory-4 || !strings.HasPrefix(got, "300,") || !strings.HasSuffix(got, ",300,76,77") {
		t.Errorf("%d characters: %.20s…%s", len(got), got, got[max(0, len(got)-20):])
	}
	set.Annotations[v1alpha1.AnnotationKeyRevision] = strings.Repeat("x", longestHistory+1)
	setRevision(set, 101)
	if got := set.Annotations[v1alpha1.AnnotationKeyRevisionHistory]; len(got) > longestHistory {
		t.Errorf("%d characters", len(got))
	}
}

// TestNumbersAreNeverNegative: those that a set asks for, and those that it reports.
func TestNumbersAreNeverNegative(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		set                 *v1alpha1.MachineSet
		asked, usable, kept int32
	}{
		"as it should be":      {fixture.Set("a", 5, fixture.Reports(5, 3), fixture.PreservedFailed(1)), 5, 3, 1},
		"asks for less":        {fixture.Set("a", -5, fixture.Reports(5, 3), fixture.PreservedFailed(1)), 0, 0, 0},
		"less is available":    {fixture.Set("a", 5, fixture.Reports(5, -3), fixture.PreservedFailed(1)), 5, 0, 1},
		"less is preserved":    {fixture.Set("a", 5, fixture.Reports(5, 3), fixture.PreservedFailed(-1)), 5, 3, 0},
		"more than it has":     {fixture.Set("a", 5, fixture.Reports(5, 9), fixture.PreservedFailed(9)), 5, 5, 0},
		"more are preserved":   {fixture.Set("a", 5, fixture.Reports(5, 3), fixture.PreservedFailed(9)), 5, 3, 2},
		"fewer than there are": {fixture.Set("a", 5, fixture.Reports(-1, 0)), 5, 0, 0},
	} {
		if asked, usable, kept := Desired(test.set), Available(test.set), preservedFailed(test.set); asked != test.asked || usable != test.usable || kept != test.kept || Existing(test.set) < asked {
			t.Errorf("%s: it asks for %d, %d are usable and %d kept, of %d", name, asked, usable, kept, Existing(test.set))
		}
	}
}
