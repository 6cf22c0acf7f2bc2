package rollout

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/revision"
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

// TestRevision_CurrentSetHasHighest checks that the current set keeps a revision that is higher than that of all old
// sets, and otherwise, when it was an old set before, gets the next one.
func TestRevision_CurrentSetHasHighest(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		old, current string
		want         int64
	}{
		"higher":                {"2", "5", 5},
		"it was an old set":     {"5", "2", 6},
		"two sets have it":      {"5", "5", 6},
		"it has none":           {"2", "", 3},
		"no set has a revision": {"", "", 1},
	} {
		old := fixture.Set("a", 3, fixture.OfRevision(test.old))
		current := fixture.Set("b", 1, fixture.OfRevision(test.current))
		r := New(NewFacts(fixture.Deployment(3, fixture.OfClass("b")), sets{old, current}, fixture.Noon))
		if got := r.TemplateRevision(); got != test.want {
			t.Errorf("%s: it is reported as %d, want %d", name, got, test.want)
		}
		if got := revision.Number(refreshed(r, current, 1, 0)); got != test.want {
			t.Errorf("%s: it becomes %d, want %d", name, got, test.want)
		}
	}
}

// TestAnnotated checks which metadata of a deployment follows from its sets: the highest revision, and whether one of
// the sets is frozen.
func TestAnnotated(t *testing.T) {
	t.Parallel()
	ofRevision := func(number string) change { return annotated(v1alpha1.AnnotationKeyRevision, number) }
	second := fixture.OfRevision("2")
	withoutRevision := func(set *v1alpha1.MachineSet) { delete(set.Annotations, v1alpha1.AnnotationKeyRevision) }
	wasFrozen := func(d *v1alpha1.MachineDeployment) {
		metav1.SetMetaDataLabel(&d.ObjectMeta, v1alpha1.LabelKeyFreeze, isTrue)
	}
	unchanged := func(*v1alpha1.MachineDeployment) {}
	type metadata = map[string]string
	const number = v1alpha1.AnnotationKeyRevision
	for name, test := range map[string]struct {
		change change
		sets   sets
		want   metadata
	}{
		"a new set":        {ofRevision("1"), sets{fixture.Set("a", 3, second)}, metadata{number: "2"}},
		"a first set":      {unchanged, sets{fixture.Set("a", 3)}, metadata{number: "1"}},
		"without a number": {unchanged, sets{fixture.Set("a", 3, withoutRevision)}, metadata{}},
		"no set":           {ofRevision("1"), nil, metadata{number: "1"}},
		"only an old set":  {ofRevision("1"), sets{fixture.Set("b", 3, second)}, metadata{number: "1"}},
		"no longer frozen": {wasFrozen, sets{fixture.Set("a", 3)}, metadata{number: "1"}},
		"an old set is frozen": {
			unchanged, sets{fixture.Set("b", 3, isFrozen), fixture.Set("a", 0)},
			metadata{number: "1", v1alpha1.LabelKeyFreeze: isTrue},
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := fixture.Deployment(3, test.change)
			annotated := New(NewFacts(d, test.sets, fixture.Noon)).Annotated(d)
			got := metadata{}
			maps.Copy(got, annotated.Labels)
			maps.Copy(got, annotated.Annotations)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("want - got +\n%s", diff)
			}
		})
	}
}

// TestRollback checks which set's template a rollback restores, and why it is refused. Nothing else is planned in the
// same pass.
func TestRollback(t *testing.T) {
	t.Parallel()
	to := func(number int64) change {
		return func(d *v1alpha1.MachineDeployment) { d.Spec.RollbackTo = &v1alpha1.RollbackConfig{Revision: number} }
	}
	both := func(one, two change) change { return func(d *v1alpha1.MachineDeployment) { one(d); two(d) } }
	first, second := fixture.Set("a", 3), fixture.Set("b", 0, fixture.OfRevision("2"))
	const (
		rolledBack = v1alpha1.DeploymentReasonRollback
		notFound   = v1alpha1.DeploymentReasonRevisionNotFound
		unchanged  = v1alpha1.DeploymentReasonTemplateUnchanged
	)
	for name, test := range map[string]struct {
		change      change
		sets        sets
		topic, text string
	}{
		"not requested":               {func(*v1alpha1.MachineDeployment) {}, sets{first, second}, "", ""},
		"paused":                      {both(to(1), fixture.Paused), sets{first, second}, "", ""},
		"to a revision":               {to(1), sets{first, second}, rolledBack, "to revision 1"},
		"to the previous one":         {to(0), sets{first, second}, rolledBack, "to revision 1"},
		"to the previous one of none": {to(0), sets{second}, notFound, "no earlier revision"},
		"to an unknown one":           {to(7), sets{first, second}, notFound, "no machine set has revision 7"},
		"to the current one":          {to(2), sets{first, second}, unchanged, "revision 2"},
	} {
		t.Run(name, func(t *testing.T) {
			d := fixture.Deployment(3, fixture.OfClass("b"), test.change)
			plan := Plan(New(NewFacts(d, test.sets, fixture.Noon)))
			handles := func(op Operation) bool { return op.Deployment != nil }
			switch {
			case test.topic == "":
				if slices.ContainsFunc(plan, handles) {
					t.Errorf("the plan is %+v", plan)
				}
			case len(plan) != 1 || !handles(plan[0]) || plan[0].Deployment.Spec.RollbackTo != nil:
				t.Errorf("the plan is %+v; want only an operation that removes the request", plan)
			case plan[0].Topic != test.topic || !strings.Contains(plan[0].Reason, test.text):
				t.Errorf("got %s: %s; want %s and %q", plan[0].Topic, plan[0].Reason, test.topic, test.text)
			}
		})
	}
}

// TestRollback_RestoresAnnotations checks that a rollback restores the template and the annotations of a set, except
// those that control how Machines are created and deleted, and those that belong to the set alone.
func TestRollback_RestoresAnnotations(t *testing.T) {
	t.Parallel()
	d := fixture.Deployment(3, fixture.OfClass("b"), annotated(v1alpha1.AnnotationKeyLastReplicaChange, fixture.Later),
		annotated("example.com/kept", "new"), annotated("example.com/added", "new"),
		annotated(v1alpha1.AnnotationKeyRevision, "2"))
	d.Spec.RollbackTo = &v1alpha1.RollbackConfig{Revision: 1}
	old := fixture.Set("a", 0, func(set *v1alpha1.MachineSet) {
		set.Annotations["example.com/kept"], set.Annotations["example.com/removed"] = "old", "old"
		set.Annotations[v1alpha1.AnnotationKeyLastReplicaChange] = fixture.Early
	})
	plan := Plan(New(NewFacts(d, sets{old, fixture.Set("b", 3, fixture.OfRevision("2"))}, fixture.Noon)))
	if len(plan) != 1 || plan[0].Action != RollBack || plan[0].Set != old {
		t.Fatalf("the plan is %+v", plan)
	}
	want := map[string]string{
		"example.com/kept": "old", "example.com/removed": "old",
		v1alpha1.AnnotationKeyLastReplicaChange: fixture.Later, v1alpha1.AnnotationKeyRevision: "2",
	}
	if diff := cmp.Diff(want, plan[0].Deployment.Annotations); diff != "" {
		t.Errorf("annotations: want - got +\n%s", diff)
	}
	if diff := cmp.Diff(fixture.Deployment(3).Spec.Template, plan[0].Deployment.Spec.Template); diff != "" {
		t.Errorf("template: want - got +\n%s", diff)
	}
}
