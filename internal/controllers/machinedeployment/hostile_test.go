package machinedeployment

import (
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/fixture"
)

// TestTheLastOfAllRevisions: no number comes after it, so it does not count.
func TestTheLastOfAllRevisions(t *testing.T) {
	const last = "9223372036854775807"
	numbered := func(number string) func(*v1alpha1.MachineDeployment) {
		return func(d *v1alpha1.MachineDeployment) {
			fixture.OfClass("b")(d)
			d.Annotations = map[string]string{v1alpha1.AnnotationKeyRevision: number}
		}
	}
	for name, test := range map[string]struct {
		deployment string
		sets       sets
		want       string
	}{
		"an old set's":           {"1", sets{fixture.Set("a", 0, fixture.WithUID, fixture.OfRevision(last)), fixture.Set("b", 3, fixture.WithUID, fixture.OfRevision("2"))}, "2"},
		"an old set's, and none": {"1", sets{fixture.Set("a", 0, fixture.WithUID, fixture.OfRevision(last))}, "2"},
		"the deployment's":       {last, sets{fixture.Set("a", 0, fixture.WithUID, fixture.OfRevision("4"))}, "5"},
		"the current set's":      {"1", sets{fixture.Set("a", 0, fixture.WithUID, fixture.OfRevision("4")), fixture.Set("b", 3, fixture.WithUID, fixture.OfRevision(last))}, last},
		"the last but one":       {"1", sets{fixture.Set("a", 0, fixture.WithUID, fixture.OfRevision("9223372036854775806")), fixture.Set("b", 3, fixture.WithUID, fixture.OfRevision("2"))}, last},
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
					t.Errorf("its revision is %s, the history %q", got[v1alpha1.AnnotationKeyRevision], got[v1alpha1.AnnotationKeyRevisionHistory])
				}
			}
			if got := s.deployment().Annotations[v1alpha1.AnnotationKeyRevision]; got != test.want {
				t.Errorf("the deployment's revision is %s, want %s", got, test.want)
			}
		})
	}
}
