package machinedeployment

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/rollout"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// TestRollback_RestoresAnnotations checks that a rollback restores the annotations that explain the
// revision, removes those of the abandoned template, and keeps others.
func TestRollback_RestoresAnnotations(t *testing.T) {
	const applied = "kubectl.kubernetes.io/last-applied-configuration"
	first := fixture.Set("a", 0, fixture.WithUID, fixture.OfRevision("1"))
	first.Annotations["cause"], first.Annotations["only of the first"] = "the first", "x"
	s := newServer(fixture.Deployment(3, fixture.OfClass("b"), rollbackTo(1), func(d *v1alpha1.MachineDeployment) {
		d.Annotations = map[string]string{
			"cause": "the second", "only of the second": "y",
			applied: "{}", v1alpha1.AnnotationKeyRevision: "2", v1alpha1.AnnotationKeyLastReplicaChange: fixture.Later,
		}
		d.Status.ObservedGeneration = 1
	}), first, fixture.Set("b", 3, fixture.WithUID, fixture.OfRevision("2")))
	s.Target = nil
	s.pass(t)
	want := map[string]string{
		"cause": "the first", "only of the first": "x",
		applied: "{}", v1alpha1.AnnotationKeyRevision: "2", v1alpha1.AnnotationKeyLastReplicaChange: fixture.Later,
	}
	if diff := cmp.Diff(want, s.deployment().Annotations); diff != "" {
		t.Errorf("want - got +\n%s", diff)
	}
}

// TestRevision_IsNotReused checks that a revision number is not reused, even if its set no longer exists.
func TestRevision_IsNotReused(t *testing.T) {
	s := newServer(fixture.Deployment(1, func(d *v1alpha1.MachineDeployment) {
		d.Annotations = map[string]string{v1alpha1.AnnotationKeyRevision: "5"}
		d.Status.ObservedGeneration = 1
	}))
	s.pass(t)
	for what, got := range map[string]string{
		"the set":        s.only(t).Annotations[v1alpha1.AnnotationKeyRevision],
		"the deployment": s.deployment().Annotations[v1alpha1.AnnotationKeyRevision],
	} {
		if got != "6" {
			t.Errorf("%s: revision %q, want 6", what, got)
		}
	}
}

// TestMachineDeployment_UsedSetIsNotPruned checks that a set that a user scaled up is not pruned, even if the cache does
// not show that.
func TestMachineDeployment_UsedSetIsNotPruned(t *testing.T) {
	s := newServer(fixture.Deployment(3, fixture.OfClass("b"), func(d *v1alpha1.MachineDeployment) { d.Spec.RevisionHistoryLimit = ptr.To(int32(0)) }),
		fixture.Set("a", 0, fixture.WithUID), fixture.Set("b", 3, fixture.WithUID))
	shown := s.all()["pool-a"]
	s.setSet(t, "pool-a", func(set *v1alpha1.MachineSet) { set.Spec.Replicas = 1 })
	op := rollout.Operation{Action: rollout.Prune, Set: shown, Reason: "the history is full"}
	if err := s.current().prune(t.Context(), s.deployment(), op); !apierrors.IsConflict(err) {
		t.Errorf("error %v", err)
	}
	if len(s.all()) != 2 || len(s.lines) > 0 {
		t.Errorf("sets %q, events %q", slices.Sorted(maps.Keys(s.all())), s.lines)
	}
}

// TestRevision_MaximumIsIgnored checks that the maximum number is ignored, since no revision can follow it.
func TestRevision_MaximumIsIgnored(t *testing.T) {
	const last = "9223372036854775807"
	numbered := func(number string) func(*v1alpha1.MachineDeployment) {
		return func(d *v1alpha1.MachineDeployment) {
			fixture.OfClass("b")(d)
			d.Annotations = map[string]string{v1alpha1.AnnotationKeyRevision: number}
			d.Status.ObservedGeneration = 1
		}
	}
	for name, test := range map[string]struct {
		deployment string
		sets       sets
		want       string
	}{
		"of an old set":         {"1", sets{fixture.Set("a", 0, fixture.WithUID, fixture.OfRevision(last)), fixture.Set("b", 3, fixture.WithUID, fixture.OfRevision("2"))}, "2"},
		"of the only set":       {"1", sets{fixture.Set("a", 0, fixture.WithUID, fixture.OfRevision(last))}, "2"},
		"the deployment's":      {last, sets{fixture.Set("a", 0, fixture.WithUID, fixture.OfRevision("4"))}, "5"},
		"of the current set":    {"1", sets{fixture.Set("a", 0, fixture.WithUID, fixture.OfRevision("4")), fixture.Set("b", 3, fixture.WithUID, fixture.OfRevision(last))}, last},
		"one below the maximum": {"1", sets{fixture.Set("a", 0, fixture.WithUID, fixture.OfRevision("9223372036854775806")), fixture.Set("b", 3, fixture.WithUID, fixture.OfRevision("2"))}, last},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(fixture.Deployment(3, numbered(test.deployment)))
			for _, set := range test.sets {
				must(s.live.Create(t.Context(), set))
			}
			s.Target = nil
			for range 5 {
				s.pass(t)
			}
			for _, set := range s.all() {
				got := set.Annotations
				if set.Spec.Template.Spec.Class.Name == "b" && (got[v1alpha1.AnnotationKeyRevision] != test.want || strings.Contains(got[v1alpha1.AnnotationKeyRevisionHistory], ",")) {
					t.Errorf("revision %s, history %q", got[v1alpha1.AnnotationKeyRevision], got[v1alpha1.AnnotationKeyRevisionHistory])
				}
			}
			if got := s.deployment().Annotations[v1alpha1.AnnotationKeyRevision]; got != test.want {
				t.Errorf("revision of the deployment: %s, want %s", got, test.want)
			}
		})
	}
}
