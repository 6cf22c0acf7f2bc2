package rollout

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// TestSuspended_ScalesSetsInUse checks how far a deployment whose rollout is suspended can be scaled. If it replaces
// Machines a few at a time, Machines of other sets that still exist count. With the strategy Recreate, they do not.
func TestSuspended_ScalesSetsInUse(t *testing.T) {
	t.Parallel()
	paused := func(replicas int32, strategy change) *v1alpha1.MachineDeployment {
		return fixture.Deployment(replicas, fixture.Paused, strategy, fixture.OfClass("b"))
	}
	unsupported := func(replicas int32) *v1alpha1.MachineDeployment {
		return fixture.Deployment(replicas, fixture.InPlace("1", "0"), fixture.OfClass("c"))
	}
	rolling, inPlace := fixture.Rolling("1", "0"), fixture.InPlace("1", "0")
	of3, leaving := fixture.ScaledFor(3, 4), fixture.Set("a", 0, fixture.Reports(2, 0))
	three, four, none := fixture.Set("b", 3, of3), fixture.Set("b", 4, of3), fixture.Set("a", 0)
	known := map[string][]*v1alpha1.Machine{}
	const (
		together    = "4 replicas desired; all machine sets are scaled down in proportion to their sizes"
		whilePaused = "the paused deployment was scaled"
		notRolled   = "the deployment was scaled; its template is not being rolled out"
	)
	for reason, test := range map[string]struct {
		deployment *v1alpha1.MachineDeployment
		sets       sets
		machines   map[string][]*v1alpha1.Machine
		want       []string
		why        string
	}{
		"rolling":           {paused(5, rolling), sets{leaving, three}, nil, []string{"pool-b to 4"}, whilePaused},
		"recreated":         {paused(5, fixture.Recreate), sets{leaving, three}, nil, []string{"pool-b to 5"}, whilePaused},
		"updated in place":  {paused(5, inPlace), sets{leaving, three}, known, []string{"pool-b to 4"}, whilePaused},
		"cannot be updated": {unsupported(5), sets{leaving, four}, nil, nil, ""},
		"others are gone":   {unsupported(5), sets{none, four}, nil, []string{"pool-b to 5"}, notRolled},
		"its own are leaving": {
			paused(5, rolling), sets{none, fixture.Set("b", 3, of3, fixture.Reports(5, 3))}, nil,
			[]string{"pool-b to 5"}, whilePaused,
		},
		"scaled down": {paused(1, rolling), sets{three}, nil, []string{"pool-b to 1"}, whilePaused},
		"scaled down, an old set": {
			paused(1, rolling), sets{fixture.Set("a", 3, of3)}, nil, []string{"pool-a to 1"}, whilePaused,
		},
		"scaled to zero and back while machines leave": {
			paused(3, rolling), sets{fixture.Set("a", 0, of3, fixture.Reports(1, 0))}, nil, []string{"pool-a to 3"}, whilePaused,
		},
		// A rollout that has not begun has no surge, although the sets were scaled for one.
		"two sets, scaled down": {
			fixture.Deployment(4, fixture.Paused, rolling, fixture.OfClass("c")),
			sets{fixture.Set("a", 6, fixture.ScaledFor(10, 20)), fixture.Set("b", 4, fixture.ScaledFor(10, 20))}, nil,
			[]string{"pool-a to 2", "pool-b to 2"}, together,
		},
		"two sets, one has not reported": {
			paused(2, rolling), sets{fixture.Set("a", 3, of3, fixture.Unsettled), fixture.Set("b", 1, of3)}, nil, nil, "",
		},
	} {
		t.Run(reason, func(t *testing.T) {
			f := NewFacts(test.deployment, test.sets, fixture.Noon)
			f.Machines = test.machines
			operations := planReplicas(New(f))
			if diff := cmp.Diff(test.want, brief(t, operations)); diff != "" {
				t.Errorf("want - got +\n%s", diff)
			}
			if len(operations) > 0 && operations[0].Reason != test.why {
				t.Errorf("reason %q, want %q", operations[0].Reason, test.why)
			}
		})
	}
}
