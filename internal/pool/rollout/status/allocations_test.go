package status

import (
	"strconv"
	"testing"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/rollout"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// BenchmarkNext_ManyOldSets measures a pass over a deployment that keeps its whole history.
func BenchmarkNext_ManyOldSets(b *testing.B) {
	for _, n := range []int{10, 1000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			pass := overOldSets(n)
			b.ReportAllocs()
			for b.Loop() {
				pass()
			}
		})
	}
}

// TestNext_OldSetsAreCheap checks that a pass reads all old sets but copies none.
func TestNext_OldSetsAreCheap(t *testing.T) {
	few, many := testing.AllocsPerRun(3, overOldSets(10)), testing.AllocsPerRun(3, overOldSets(1010))
	if many > few+1000 {
		t.Errorf("10 old sets: %.0f allocations; 1000 more of them: %.0f", few, many)
	}
}

// overOldSets returns a pass over a deployment with many old sets, each with its own class.
func overOldSets(n int) func() {
	all := sets{fixture.Set("b", 3)}
	for i := range n {
		all = append(all, fixture.Set("a", 0, func(set *v1alpha1.MachineSet) {
			set.Name, set.Spec.Template.Spec.Class.Name = "pool-"+strconv.Itoa(i), "class-"+strconv.Itoa(i)
		}))
	}
	deployment := fixture.Deployment(3, fixture.OfClass("b"))
	return func() {
		f := rollout.NewFacts(deployment, all, fixture.Noon)
		rollout.Plan(rollout.New(f))
		nextStatus(f, nil)
	}
}
