package rollout

import (
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/counts"
	"github.com/millwright-dev/millwright/test/support/fixture"
	"github.com/millwright-dev/millwright/test/support/tier"
)

func TestPlanScaleDown(t *testing.T) {
	t.Parallel()
	of10 := fixture.ScaledFor(10, 10)
	for reason, test := range map[string]struct {
		replicas int32
		strategy change
		sets     sets
		want     []string
	}{
		"in proportion": {5, fixture.Rolling("0", "5"), sets{fixture.Set("a", 6, of10), fixture.Set("b", 4, of10)}, []string{"pool-a to 3", "pool-b to 2"}},
		"the remainder is taken from the largest":                       {4, fixture.Rolling("0", "4"), sets{fixture.Set("a", 5, of10), fixture.Set("b", 3, of10), fixture.Set("c", 2, of10)}, []string{"pool-a to 2", "pool-b to 1", "pool-c to 1"}},
		"the former size from the annotation":                           {5, fixture.Rolling("0", "5"), sets{fixture.Set("a", 6, fixture.ScaledFor(20, 20)), fixture.Set("c", 4, fixture.ScaledFor(20, 20))}, []string{"pool-a to 2", "pool-c to 3"}},
		"an annotation that is not a number":                            {5, fixture.Rolling("0", "5"), sets{fixture.Set("a", 6, of10), fixture.Set("c", 4, of10, func(s *v1alpha1.MachineSet) { s.Annotations[v1alpha1.AnnotationKeyMaxReplicas] = "x" })}, []string{"pool-a to 3", "pool-c to 2"}},
		"new machines that are not available are taken before old ones": {5, fixture.Rolling("0", "0%"), sets{fixture.Set("a", 5, of10), fixture.Set("c", 5, of10, fixture.Reports(5, 0))}, []string{"pool-a to 4", "pool-c to 1"}},
		"not scaled, so the rollout continues":                          {10, fixture.Rolling("0", "1"), sets{fixture.Set("a", 6, of10), fixture.Set("c", 4, of10)}, []string{"pool-a to 5"}},
		"scaled to zero":                                                {0, fixture.Rolling("1", "0"), sets{fixture.Set("a", 6, of10), fixture.Set("c", 4, of10)}, []string{"pool-a to 0", "pool-c to 0"}},
		"scaled up: only the new set grows":                             {14, fixture.Rolling("0", "1"), sets{fixture.Set("a", 6, of10), fixture.Set("c", 4, of10)}, []string{"pool-c to 8"}},
	} {
		t.Run(reason, func(t *testing.T) {
			name := "c"
			if len(test.sets) == 2 && test.sets[1].Name == "pool-b" {
				name = "b"
			}
			f := NewFacts(fixture.Deployment(test.replicas, test.strategy, fixture.OfClass(name)), test.sets, fixture.Noon)
			if diff := cmp.Diff(test.want, brief(t, Plan(New(f)))); diff != "" {
				t.Errorf("want - got +\n%s", diff)
			}
		})
	}
}

// TestScaleDown_DuringRollout checks from which sets Machines are taken when a deployment is scaled down to 4 replicas
// during a rollout.
func TestScaleDown_DuringRollout(t *testing.T) {
	t.Parallel()
	sized := func(size string) func(*v1alpha1.MachineSet) {
		return func(set *v1alpha1.MachineSet) {
			fixture.ScaledFor(10, 10)(set)
			set.Annotations[v1alpha1.AnnotationKeyMaxReplicas] = size
		}
	}
	old := func(replicas int32, size string) *v1alpha1.MachineSet { return fixture.Set("a", replicas, sized(size)) }
	newer := func(replicas int32, size string) *v1alpha1.MachineSet { return fixture.Set("b", replicas, sized(size)) }
	const tooLarge = "99999999999"
	for reason, test := range map[string]struct {
		unavailable string
		sets        sets
		want        []string
	}{
		// An old set does not lose its Machines before others because it is the newest one.
		"the current set has none": {"4", sets{old(2, "10"), newer(8, "10")}, []string{"pool-a to 1", "pool-b to 3"}},
		"the sizes are unknown":    {"4", sets{old(6, "x"), newer(4, "x")}, []string{"pool-a to 2", "pool-b to 2"}},
		"the sizes are zero":       {"4", sets{old(6, "0"), newer(4, "0")}, []string{"pool-a to 2", "pool-b to 2"}},
		"the sizes are too large":  {"4", sets{old(6, tooLarge), newer(4, tooLarge)}, []string{"pool-a to 2", "pool-b to 2"}},
		"sized with a surge":       {"4", sets{old(6, "20"), newer(4, "20")}, []string{"pool-a to 1", "pool-b to 3"}},
		// The preserved Machine is not counted any more, instead of one that becomes available soon.
		"a preserved machine": {"1", sets{
			fixture.Set("a", 4, sized("4"), fixture.Reports(4, 2)),
			fixture.Set("b", 1, sized("10"), fixture.Reports(1, 0), fixture.PreservedFailed(1)),
		}, []string{"pool-b to 0"}},
	} {
		t.Run(reason, func(t *testing.T) {
			deployment := fixture.Deployment(4, fixture.Rolling("0", test.unavailable), fixture.OfClass("c"))
			got := brief(t, planReplicas(New(NewFacts(deployment, test.sets, fixture.Noon))))
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("want - got +\n%s", diff)
			}
		})
	}
}

// TestScaleDown_KeepsAvailableMachines checks, with random sets, that enough machines are taken and that machines
// that must stay available are kept.
func TestScaleDown_KeepsAvailableMachines(t *testing.T) {
	t.Parallel()
	tier.Check(t, func(t *rapid.T) {
		number := func(name string, most int32) int32 { return rapid.Int32Range(0, most).Draw(t, name) }
		var all sets
		for _, name := range []string{"a", "b", "c"} {
			asks := number("asks", 20)
			available := number("available", asks)
			all = append(all, fixture.Set(name, asks, fixture.Reports(asks, available), fixture.PreservedFailed(number("preserved", asks-available)), fixture.ScaledFor(int(number("for", 60)), int(number("of", 60)))))
		}
		deployment := fixture.Deployment(number("replicas", 40), fixture.OfClass("c"), fixture.Rolling(strconv.Itoa(int(number("surge", 5))), strconv.Itoa(int(number("unavailable", 5)))))
		f := NewFacts(deployment, all, fixture.Noon)
		r := New(f)
		if r.excess == 0 {
			return
		}
		before := map[string]int32{}
		left := map[string]int32{}
		var rest, available int32
		for _, set := range all {
			before[set.Name], left[set.Name] = counts.Desired(set), counts.Desired(set)
		}
		for _, op := range planScaleDown(r) {
			left[op.Set.Name] = op.Replicas
			if op.Replicas >= before[op.Set.Name] || op.Replicas < 0 {
				t.Fatalf("%s from %d to %d", op.Set.Name, before[op.Set.Name], op.Replicas)
			}
		}
		for _, set := range all {
			rest += left[set.Name]
			available += share{set, left[set.Name]}.available()
		}
		if most := deployment.Spec.Replicas + r.surge; rest > most {
			t.Fatalf("%d remain, at most %d allowed", rest, most)
		}
		minAvailable := int32(min(int64(deployment.Spec.Replicas-r.unavailable)-counts.Total(all, counts.PreservedFailed), counts.Total(all, counts.Available)))
		if available < minAvailable {
			t.Fatalf("%d remain available, at least %d required", available, minAvailable)
		}
	})
}

// TestScale_SetWithoutRecordedSize checks that a set without a recorded size, such
// as one that a user restored, does not make the deployment look scaled.
func TestScale_SetWithoutRecordedSize(t *testing.T) {
	t.Parallel()
	for reason, test := range map[string]struct {
		sets sets
		want bool
	}{
		"no recorded sizes":              {sets{fixture.Set("a", 3, silent), fixture.Set("b", 1, silent)}, false},
		"one recorded size, the same":    {sets{fixture.Set("a", 3, silent), fixture.Set("b", 1, fixture.ScaledFor(8, 9))}, false},
		"one recorded size, another one": {sets{fixture.Set("a", 3, silent), fixture.Set("b", 1, fixture.ScaledFor(4, 5))}, true},
		"another size, without machines": {sets{fixture.Set("a", 3, silent), fixture.Set("b", 0, fixture.ScaledFor(4, 5))}, false},
		"one that is not in use":         {sets{fixture.Set("a", 0, silent), fixture.Set("b", 8, fixture.ScaledFor(8, 9))}, false},
	} {
		if got := New(NewFacts(fixture.Deployment(8, fixture.Paused, fixture.OfClass("c")), test.sets, fixture.Noon)).resized; got != test.want {
			t.Errorf("%s: %t", reason, got)
		}
	}
}
