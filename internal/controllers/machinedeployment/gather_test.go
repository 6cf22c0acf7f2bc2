package machinedeployment

import (
	"context"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/rollout"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// TestPlanAndApply_DoNotChangeFacts checks that neither planning nor applying changes the facts. The plan creates a set,
// scales another one and marks nodes.
func TestPlanAndApply_DoNotChangeFacts(t *testing.T) {
	s := duringRollout(t, 2, 0, fixture.OfClass("c"))
	p := s.current()
	sets, err := s.sets(t.Context(), fixture.Namespace, "uid-of-pool")
	must(err)
	r, err := p.gather(t.Context(), s.deployment(), sets)
	must(err)
	objects := func() (all []any) {
		for _, set := range r.All() {
			all = append(all, set.DeepCopy())
		}
		for _, node := range r.Nodes.OfOld {
			all = append(all, node.Machine.DeepCopy(), node.Node.DeepCopy())
		}
		return append(all, r.Deployment.DeepCopy())
	}
	before := objects()
	o := p.apply(t.Context(), r, rollout.Plan(r))
	if o.Failure != nil || o.Created == nil || len(o.Written) == 0 || nodeWrites(s) != 2 {
		t.Fatalf("outcome %+v, writes %q", o, s.writes)
	}
	if _, err := p.report(t.Context(), r, o); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, objects()); diff != "" {
		t.Errorf("the facts changed: want - got +\n%s", diff)
	}
}

// TestGather_SortsSets checks that sets are sorted, since the order of the cache is random and messages must not
// change.
func TestGather_SortsSets(t *testing.T) {
	objects := []client.Object{fixture.Deployment(0)}
	var want []string
	for _, name := range []string{"a", "b", "c", "d"} {
		objects = append(objects, fixture.Set(name, 0, fixture.WithUID))
		want = append(want, "pool-"+name)
	}
	s := newServer(objects...)
	s.Client = interceptor.NewClient(s.live, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			err := c.List(ctx, list, opts...)
			slices.Reverse(list.(*v1alpha1.MachineSetList).Items)
			return err
		},
	})
	sets, err := s.sets(t.Context(), fixture.Namespace, "uid-of-pool")
	must(err)
	var got []string
	for _, set := range sets {
		got = append(got, set.Name)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want - got +\n%s", diff)
	}
}
