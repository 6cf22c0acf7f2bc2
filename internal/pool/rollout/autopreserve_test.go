package rollout

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// places describes a set with a maximum and a number of automatically preserved Machines.
type places struct{ max, count, replicas int32 }

func (s places) made() *v1alpha1.MachineSet {
	set := &v1alpha1.MachineSet{}
	set.Spec.Replicas, set.Spec.AutoPreserveFailedMachineMax = s.replicas, s.max
	set.Status.Replicas, set.Status.AutoPreserveFailedMachineCount = s.replicas, s.count
	return set
}

func sharing(whole int32, current *places, old ...places) Facts {
	f := Facts{Deployment: &v1alpha1.MachineDeployment{}}
	f.Deployment.Spec.AutoPreserveFailedMachineMax = whole
	if current != nil {
		f.Current = current.made()
	}
	for _, s := range old {
		f.Old = append(f.Old, s.made())
	}
	return f
}

// TestAutoPreserveMax checks how many Machines the sets of a rollout may preserve automatically.
func TestAutoPreserveMax(t *testing.T) {
	for name, test := range map[string]struct {
		f       Facts
		current int32
		old     []int32
	}{
		"one set":                             {sharing(3, &places{max: 0, replicas: 5}), 3, nil},
		"one set, fewer":                      {sharing(1, &places{max: 3, count: 3, replicas: 5}), 1, nil},
		"a negative number is none":           {sharing(-1, &places{max: 3, replicas: 5}), 0, nil},
		"a rollout begins":                    {sharing(3, &places{}, places{max: 3, count: 1, replicas: 5}), 0, []int32{1}},
		"the old one has given up its places": {sharing(3, &places{}, places{max: 1, count: 1, replicas: 5}), 2, []int32{1}},
		"the old one is empty":                {sharing(3, &places{}, places{max: 3}), 3, []int32{0}},
		"paused before it began":              {sharing(3, nil, places{max: 1, replicas: 1}, places{max: 1, count: 1, replicas: 5}), 2, []int32{0, 2}},
		"MCM's sets, which exceed it":         {sharing(2, &places{max: 2, count: 1, replicas: 5}, places{max: 2, count: 1, replicas: 5}), 1, []int32{1}},
		"fewer than old ones preserve":        {sharing(1, &places{}, places{max: 2, count: 1, replicas: 5}, places{max: 2, count: 1, replicas: 5}), 0, []int32{0, 1}},
		"paused, the older one preserves it":  {sharing(1, nil, places{1, 1, 1}, places{1, 1, 5}), 0, []int32{1, 0}},
		"an old one gives up its last place":  {sharing(3, &places{3, 3, 5}, places{0, 1, 5}, places{2, 0, 5}), 3, []int32{0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			if test.f.Current != nil {
				if got := autoPreserveMax(test.f, test.f.Current); got != test.current {
					t.Errorf("the current set may preserve %d, want %d", got, test.current)
				}
			}
			for i, want := range test.old {
				if got := autoPreserveMax(test.f, test.f.Old[i]); got != want {
					t.Errorf("old set %d may preserve %d, want %d", i, got, want)
				}
			}
		})
	}
}

// TestAutoPreserveMax_NewSetGetsRemainder checks that a new set gets what the old sets leave.
func TestAutoPreserveMax_NewSetGetsRemainder(t *testing.T) {
	f := sharing(3, nil, places{max: 1, replicas: 1}, places{max: 1, count: 1, replicas: 5})
	if got := autoPreserveMax(f, nil); got != 1 {
		t.Errorf("the new set may preserve %d, want 1", got)
	}
}

// TestAutoPreserveMax_WaitsForOldSets checks that an old set keeps its share until its status shows how much of it the
// set needs.
func TestAutoPreserveMax_WaitsForOldSets(t *testing.T) {
	f := sharing(3, &places{}, places{max: 3, count: 1, replicas: 5})
	f.Old[0].Generation = 1
	if got := autoPreserveMax(f, f.Old[0]); got != 3 {
		t.Errorf("the old set may preserve %d before it observed its spec, want 3", got)
	}
}

// TestAutoPreserveMax_IsNeverExceeded checks that the sets of a rollout never preserve more Machines
// automatically than their deployment allows, in whatever order the shares are written and Machines fail. In
// the end, the current set has everything that old sets do not need.
func TestAutoPreserveMax_IsNeverExceeded(t *testing.T) {
	tier.Check(t, func(t *rapid.T) {
		whole := rapid.Int32Range(0, 5).Draw(t, "maximum")
		f := sharing(whole, &places{max: whole, replicas: 9})
		for range rapid.IntRange(5, 60).Draw(t, "steps") {
			all := f.All()
			set := rapid.SampledFrom(all).Draw(t, "set")
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0: // its share is written
				set.Spec.AutoPreserveFailedMachineMax = autoPreserveMax(f, set)
			case 1: // a machine fails and is preserved, or too many are preserved
				switch s := set; {
				case s.Status.AutoPreserveFailedMachineCount < s.Spec.AutoPreserveFailedMachineMax:
					s.Status.AutoPreserveFailedMachineCount++
				default:
					s.Status.AutoPreserveFailedMachineCount = s.Spec.AutoPreserveFailedMachineMax
				}
			case 2: // one recovers
				set.Status.AutoPreserveFailedMachineCount = max(0, set.Status.AutoPreserveFailedMachineCount-1)
			case 3: // another rollout begins
				if len(all) < 4 {
					next := places{replicas: 9}
					made := next.made()
					f.Old, f.Current = append(f.Old, f.Current), nil
					made.Spec.AutoPreserveFailedMachineMax = autoPreserveMax(f, nil)
					f.Current = made
				}
			}
			preserved := int32(0)
			for _, s := range f.All() {
				preserved += s.Status.AutoPreserveFailedMachineCount
			}
			if preserved > whole {
				t.Fatalf("%d preserved, at most %d allowed", preserved, whole)
			}
		}
		for range 5 {
			for _, s := range f.All() {
				s.Spec.AutoPreserveFailedMachineMax = autoPreserveMax(f, s)
			}
		}
		rest := whole
		for _, old := range f.Old {
			rest -= old.Status.AutoPreserveFailedMachineCount
		}
		if got := f.Current.Spec.AutoPreserveFailedMachineMax; got != rest {
			t.Errorf("the current set has %d places, want %d", got, rest)
		}
	})
}
