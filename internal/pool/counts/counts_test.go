package counts_test

import (
	"math"
	"testing"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/counts"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

func TestUsable_DependsOnPhase(t *testing.T) {
	t.Parallel()
	for phase, want := range map[v1alpha1.MachinePhase]bool{
		v1alpha1.MachineRunning: true, v1alpha1.MachineAvailable: true,
		"": false, v1alpha1.MachinePending: false, v1alpha1.MachineUnknown: false, v1alpha1.MachineFailed: false,
		v1alpha1.MachineTerminating: false, v1alpha1.MachineCrashLoopBackOff: false, v1alpha1.MachineInPlaceUpdating: false,
	} {
		machine := fixture.Machine(func(m *v1alpha1.Machine) { m.Status.CurrentStatus.Phase = phase })
		if got := counts.Usable(machine); got != want {
			t.Errorf("phase %q: usable is %t, want %t", phase, got, want)
		}
	}
}

func TestDesired_IsZeroForDeletedSet(t *testing.T) {
	t.Parallel()
	if got := counts.Desired(fixture.Set("a", 3)); got != 3 {
		t.Errorf("%d machines desired, want 3", got)
	}
	if got := counts.Desired(fixture.Set("a", 3, fixture.Leaving)); got != 0 {
		t.Errorf("%d machines desired of a set that is being deleted, want 0", got)
	}
}

// A set that has all its replicas creates no Machines, so its failure to create one is from before it was scaled
// down. It may have Machines that its status does not count.
func TestSettled_IgnoresOldFailures(t *testing.T) {
	t.Parallel()
	reports := func(kind v1alpha1.MachineSetConditionType, status v1alpha1.ConditionStatus, reason string) func(*v1alpha1.MachineSet) {
		return func(set *v1alpha1.MachineSet) {
			fixture.Unsettled(set)
			set.Status.Conditions = []v1alpha1.MachineSetCondition{{Type: kind, Status: status, Reason: reason}}
		}
	}
	failed := func(reason string) func(*v1alpha1.MachineSet) {
		return reports(v1alpha1.MachineSetReplicaFailure, v1alpha1.ConditionTrue, reason)
	}
	create := failed(v1alpha1.MachineSetReasonFailedCreate)
	observed := func(set *v1alpha1.MachineSet) { set.Status.ObservedGeneration = set.Generation }
	for reason, test := range map[string]struct {
		set  *v1alpha1.MachineSet
		want bool
	}{
		"too few machines":                     {fixture.Set("a", 3, fixture.Reports(2, 2), create), true},
		"one machine may be leaving":           {fixture.Set("a", 3, fixture.Reports(3, 2), create), true},
		"enough machines":                      {fixture.Set("a", 2, fixture.Reports(2, 2), create), false},
		"more machines than desired":           {fixture.Set("a", 1, fixture.Reports(2, 2), create), false},
		"no machines desired":                  {fixture.Set("a", 0, create), false},
		"no machines desired, set is deleted":  {fixture.Set("a", 3, fixture.Reports(0, 0), create, fixture.Leaving), false},
		"another failure":                      {fixture.Set("a", 0, fixture.Reports(2, 2), failed("FailedDelete")), true},
		"observed after an old failure":        {fixture.Set("a", 0, create, observed), true},
		"no failure":                           {fixture.Set("a", 3, fixture.Unsettled), false},
		"a failure that was resolved":          {fixture.Set("a", 3, reports(v1alpha1.MachineSetReplicaFailure, v1alpha1.ConditionFalse, "FailedDelete")), false},
		"a condition that does not report one": {fixture.Set("a", 3, reports(v1alpha1.MachineSetFrozen, v1alpha1.ConditionTrue, "")), false},
	} {
		if got := counts.Settled(test.set); got != test.want {
			t.Errorf("%s: settled is %t, want %t", reason, got, test.want)
		}
	}
}

func TestCounts_AreNeverNegative(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		set                           *v1alpha1.MachineSet
		desired, available, preserved int32
	}{
		"valid":                             {fixture.Set("a", 5, fixture.Reports(5, 3), fixture.PreservedFailed(1)), 5, 3, 1},
		"negative replicas":                 {fixture.Set("a", -5, fixture.Reports(5, 3), fixture.PreservedFailed(1)), 0, 0, 0},
		"negative available":                {fixture.Set("a", 5, fixture.Reports(5, -3), fixture.PreservedFailed(1)), 5, 0, 1},
		"negative preserved":                {fixture.Set("a", 5, fixture.Reports(5, 3), fixture.PreservedFailed(-1)), 5, 3, 0},
		"more available than desired":       {fixture.Set("a", 5, fixture.Reports(5, 9), fixture.PreservedFailed(9)), 5, 5, 0},
		"more preserved than not available": {fixture.Set("a", 5, fixture.Reports(5, 3), fixture.PreservedFailed(9)), 5, 3, 2},
		"negative status replicas":          {fixture.Set("a", 5, fixture.Reports(-1, 0)), 5, 0, 0},
	} {
		desired, available, preserved := counts.Desired(test.set), counts.Available(test.set), counts.PreservedFailed(test.set)
		if desired != test.desired || available != test.available || preserved != test.preserved {
			t.Errorf("%s: desired %d, available %d, preserved %d, want %d, %d and %d",
				name, desired, available, preserved, test.desired, test.available, test.preserved)
		}
		if existing := counts.Existing(test.set); existing < desired {
			t.Errorf("%s: %d machines exist, want at least the %d desired", name, existing, desired)
		}
	}
}

func TestTotal_IgnoresNegativeCounts(t *testing.T) {
	t.Parallel()
	sets := []*v1alpha1.MachineSet{fixture.Set("a", math.MaxInt32), fixture.Set("b", -2), fixture.Set("c", 3)}
	got := counts.Total(sets, func(set *v1alpha1.MachineSet) int32 { return set.Spec.Replicas })
	if want := int64(math.MaxInt32) + 3; got != want {
		t.Errorf("total is %d, want %d", got, want)
	}
	if got := counts.Clamp(got); got != math.MaxInt32 {
		t.Errorf("clamped to %d", got)
	}
	if got := counts.Clamp(-1); got != 0 {
		t.Errorf("-1 is clamped to %d", got)
	}
}
