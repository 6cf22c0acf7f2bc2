package rollout

import (
	"strings"
	"testing"

	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// TestHistory_IsKeptWithoutCurrentSet checks that no old sets are deleted before a new set exists, because they
// may be the only record of the history.
func TestHistory_IsKeptWithoutCurrentSet(t *testing.T) {
	t.Parallel()
	f := NewFacts(fixture.Deployment(3, fixture.Paused, fixture.OfClass("c"), func(d *v1alpha1.MachineDeployment) { d.Spec.RevisionHistoryLimit = ptr.To(int32(0)) }),
		sets{fixture.Set("a", 0), fixture.Set("b", 0)}, fixture.Noon)
	for _, op := range planHistory(New(f)) {
		t.Errorf("%s %s: %s", op.Action, op.Set.Name, op.Reason)
	}
}

func TestHistory_Limit(t *testing.T) {
	t.Parallel()
	limit := func(n int32) change {
		return func(d *v1alpha1.MachineDeployment) { d.Spec.RevisionHistoryLimit = ptr.To(n) }
	}
	for reason, test := range map[string]struct {
		changes []change
		sets    sets
		want    []string
	}{
		"no limit":                       {nil, sets{fixture.Set("a", 0), fixture.Set("b", 0), fixture.Set("c", 0), fixture.Set("d", 3)}, nil},
		"none":                           {[]change{limit(0)}, sets{fixture.Set("a", 0), fixture.Set("b", 0), fixture.Set("d", 3)}, []string{"prune pool-a", "prune pool-b"}},
		"negative":                       {[]change{limit(-3)}, sets{fixture.Set("a", 0), fixture.Set("d", 3)}, []string{"prune pool-a"}},
		"the oldest is deleted":          {[]change{limit(2)}, sets{fixture.Set("c", 0), fixture.Set("b", 0), fixture.Set("a", 0), fixture.Set("d", 3)}, []string{"prune pool-a"}},
		"not in the middle of a rollout": {[]change{limit(0)}, sets{fixture.Set("a", 0), fixture.Set("b", 1), fixture.Set("d", 3, fixture.Reports(3, 2))}, nil},
		"nor before all are available":   {[]change{limit(0)}, sets{fixture.Set("a", 0), fixture.Set("d", 3, fixture.Reports(3, 2))}, nil},
		"paused: sets without machines":  {[]change{limit(0), fixture.Paused}, sets{fixture.Set("a", 0), fixture.Set("b", 1), fixture.Set("c", 0, fixture.Unsettled), fixture.Set("d", 3)}, []string{"prune pool-a"}},
		"a set with machines is skipped": {[]change{limit(1), fixture.Paused}, sets{fixture.Set("a", 1), fixture.Set("b", 0), fixture.Set("d", 3)}, nil},
	} {
		t.Run(reason, func(t *testing.T) {
			f := NewFacts(fixture.Deployment(3, append(test.changes, fixture.OfClass("d"))...), test.sets, fixture.Noon)
			var got []string
			for _, op := range planHistory(New(f)) {
				got = append(got, string(op.Action)+" "+op.Set.Name)
			}
			if strings.Join(got, ",") != strings.Join(test.want, ",") {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// TestRevision_NeverDecreases checks that a revision number is never reused.
func TestRevision_NeverDecreases(t *testing.T) {
	t.Parallel()
	owner := fixture.Deployment(3)
	owner.Annotations = map[string]string{v1alpha1.AnnotationKeyRevision: "5"}
	f := NewFacts(owner, sets{fixture.Set("a", 3, fixture.OfRevision("3"))}, fixture.Noon)
	if got := New(f).Annotated(owner).Annotations[v1alpha1.AnnotationKeyRevision]; got != "5" {
		t.Errorf("it becomes %s", got)
	}
}

// TestRevision_NewSetIsHighest checks that a new set gets the highest revision, even if the deployment's
// revision is unknown.
func TestRevision_NewSetIsHighest(t *testing.T) {
	t.Parallel()
	f := NewFacts(fixture.Deployment(3, fixture.OfClass("b")), sets{fixture.Set("a", 3, fixture.OfRevision("7"))}, fixture.Noon)
	set := New(f).NewSet(3)
	if got := set.Annotations[v1alpha1.AnnotationKeyRevision]; got != "8" {
		t.Errorf("it is revision %s", got)
	}
	if got := New(f).TemplateRevision(); got != 8 {
		t.Errorf("the next revision is reported as %d", got)
	}
	f.Deployment.Annotations = map[string]string{v1alpha1.AnnotationKeyRevision: "9"}
	if got := New(f).TemplateRevision(); got != 10 {
		t.Errorf("the next revision after 9 is reported as %d", got)
	}
}
