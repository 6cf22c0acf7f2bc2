package scale

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestOvershoot_Limits checks how many Machines freeze and unfreeze a set.
func TestOvershoot_Limits(t *testing.T) {
	t.Parallel()
	const rolling, recreate, inPlace = v1alpha1.RollingUpdateMachineDeploymentStrategyType,
		v1alpha1.RecreateMachineDeploymentStrategyType, v1alpha1.InPlaceUpdateMachineDeploymentStrategyType
	for reason, test := range map[string]struct {
		replicas  int32
		parent    *v1alpha1.MachineDeployment
		high, low int
	}{
		"no deployment: twice the replicas":                    {10, nil, 22, 21},
		"no deployment, no replicas":                           {0, nil, 2, 1},
		"rolling, in numbers":                                  {3, newParent(10, rolling, "3"), 15, 14},
		"rolling, in percent, rounded up":                      {3, newParent(11, rolling, "10%"), 15, 14},
		"the default strategy with its default":                {3, newParent(10, "", ""), 13, 12},
		"in place":                                             {3, newParent(10, inPlace, "2"), 14, 13},
		"Recreate has no surge, and aborts nothing":            {0, newParent(10, recreate, ""), 12, 11},
		"an invalid surge is ignored":                          {3, newParent(10, rolling, "many"), 12, 11},
		"the set has more replicas than the cached deployment": {20, newParent(10, rolling, "1"), 23, 22},
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			f := Facts{Set: newSet(test.replicas), Parent: test.parent, Overshoot: &Overshoot{Up: 2, Down: 1}}
			high := 0
			for len(freezeOrUnfreeze(f, high)) == 0 {
				high++
			}
			frozenSet(f.Set)
			low := high
			for len(freezeOrUnfreeze(f, low)) == 0 {
				low--
			}
			if high != test.high || low != test.low {
				t.Errorf("frozen at %d, unfrozen at %d; want %d and %d", high, low, test.high, test.low)
			}
		})
	}
}

// TestGuard_FreezeThresholdsDoNotConflict checks that, for any configuration, a set is frozen at some number of
// Machines and unfrozen at a lower number, at the latest without Machines.
func TestGuard_FreezeThresholdsDoNotConflict(t *testing.T) {
	t.Parallel()
	tier.Check(t, func(t *rapid.T) {
		small := rapid.Int32Range(0, 5)
		when := &Overshoot{Up: small.Draw(t, "up"), Down: small.Draw(t, "down")}
		f := Facts{Set: newSet(small.Draw(t, "replicas")), Overshoot: when}
		if rapid.Bool().Draw(t, "deployment") {
			f.Parent = newParent(small.Draw(t, "wanted"), v1alpha1.RecreateMachineDeploymentStrategyType, "")
		}
		acts := func(count int) bool { return len(freezeOrUnfreeze(f, count)) > 0 }
		if acts(0) {
			t.Fatal("a set without machines is frozen")
		}
		high := 1
		for !acts(high) {
			high++
		}
		frozenSet(f.Set)
		if acts(high) {
			t.Fatalf("%d machines freeze and unfreeze it", high)
		}
		if !acts(0) {
			t.Fatal("a set without machines stays frozen")
		}
	})
}

func TestGuard_FreezesSets(t *testing.T) {
	t.Parallel()
	asked := func(set *v1alpha1.MachineSet) {
		set.Annotations = map[string]string{v1alpha1.AnnotationKeyUnfreeze: "True"}
	}
	onlyCondition := func(set *v1alpha1.MachineSet) {
		set.Status.Conditions = []v1alpha1.MachineSetCondition{{Type: v1alpha1.MachineSetFrozen, Status: v1alpha1.ConditionTrue}}
	}
	on := &Overshoot{Up: 2, Down: 1}
	for reason, test := range map[string]struct {
		set   *v1alpha1.MachineSet
		count int
		when  *Overshoot
		want  []string
	}{
		"few":                                    {newSet(3), 3, on, nil},
		"too many":                               {newSet(3), 8, on, []string{"freeze"}},
		"too many, frozen already":               {newSet(3, frozenSet), 8, on, nil},
		"few again":                              {newSet(3, frozenSet), 7, on, []string{"unfreeze"}},
		"an outdated condition":                  {newSet(3, onlyCondition), 3, on, []string{"unfreeze"}},
		"requested with too many machines":       {newSet(3, frozenSet, asked), 8, on, []string{"unfreeze"}},
		"requested for a set that is not frozen": {newSet(3, asked), 3, on, []string{"unfreeze"}},
		"switched off: never frozen":             {newSet(3), 100, nil, nil},
		"switched off: a label stays":            {newSet(3, frozenSet), 0, nil, nil},
		"switched off: requested":                {newSet(3, frozenSet, asked), 0, nil, []string{"unfreeze"}},
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, op := range freezeOrUnfreeze(Facts{Set: test.set, Overshoot: test.when}, test.count) {
				got = append(got, string(op.Action))
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("want - got +\n%s", diff)
			}
		})
	}
}

// TestGuard_EmptySetIsNeverFrozen checks that a set without Machines is never frozen, even with --safety-up=0.
func TestGuard_EmptySetIsNeverFrozen(t *testing.T) {
	t.Parallel()
	if got := freezeOrUnfreeze(Facts{Set: newSet(0), Overshoot: &Overshoot{}}, 0); len(got) > 0 {
		t.Errorf("got %+v", got)
	}
}

// TestGuard_IgnoresPreservedMachines checks that preserved Machines do not count, because they are kept on
// request.
func TestGuard_IgnoresPreservedMachines(t *testing.T) {
	t.Parallel()
	owned := machines(9, annotated(v1alpha1.AnnotationKeyPreserve, "now"))
	got := Plan(Facts{Set: newSet(0), Owned: owned, Current: true, Now: noon, Overshoot: &Overshoot{Up: 2, Down: 1}})
	if diff := cmp.Diff([]string(nil), brief(t, got)); diff != "" {
		t.Errorf("want - got +\n%s", diff)
	}
}
