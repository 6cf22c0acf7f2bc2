package machinedeployment

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/planner"
	"github.com/millwright-dev/millwright/test/fixture"
)

// TestNothingWritesIntoFacts: neither a plan that creates a set, scales another and marks nodes, nor
// what is written of it.
func TestNothingWritesIntoFacts(t *testing.T) {
	s := rollout(t, 2, 0, fixture.OfClass("c"))
	p := s.current()
	sets, err := s.sets(t.Context(), fixture.Namespace, "uid-of-pool")
	must(err)
	f, err := p.gather(t.Context(), s.deployment(), sets)
	must(err)
	objects := func() (all []any) {
		for _, set := range f.All() {
			all = append(all, set.DeepCopy())
		}
		for _, node := range f.Nodes.OfOld {
			all = append(all, node.Machine.DeepCopy(), node.Node.DeepCopy())
		}
		return append(all, f.Deployment.DeepCopy())
	}
	before := objects()
	o := p.apply(t.Context(), f, planner.Plan(f))
	if o.Failure != nil || o.Created == nil || len(o.Written) == 0 || nodeWrites(s) != 2 {
		t.Fatalf("got %+v and %q", o, s.writes)
	}
	if _, err := p.report(t.Context(), f, o); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, objects()); diff != "" {
		t.Errorf("the facts changed: want - got +\n%s", diff)
	}
}
