package machinedeployment

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// silent is a set that does not tell for which size of its deployment it was scaled.
func silent(set *v1alpha1.MachineSet) { delete(set.Annotations, v1alpha1.AnnotationKeyDesiredReplicas) }

// TestASetThatSaysNothingDoesNotTellThatTheDeploymentWasScaled: as one that a user has restored.
func TestASetThatSaysNothingDoesNotTellThatTheDeploymentWasScaled(t *testing.T) {
	for reason, test := range map[string]struct {
		sets sets
		want bool
	}{
		"none says anything":     {sets{setOf("a", 3, silent), setOf("b", 1, silent)}, false},
		"one says the same":      {sets{setOf("a", 3, silent), setOf("b", 1, scaledFor(8, 9))}, false},
		"one says another size":  {sets{setOf("a", 3, silent), setOf("b", 1, scaledFor(4, 5))}, true},
		"but one without any":    {sets{setOf("a", 3, silent), setOf("b", 0, scaledFor(4, 5))}, false},
		"one that is not in use": {sets{setOf("a", 0, silent), setOf("b", 8, scaledFor(8, 9))}, false},
	} {
		if got := resized(gather(newDeployment(8, paused, class("c")), test.sets, noon)); got != test.want {
			t.Errorf("%s: %t", reason, got)
		}
	}
}

// TestAnOldFailureDoesNotTellThatASetWasLookedAt: a set that has what it asks for makes none, so
// that it failed to is of before it was scaled down. It may have machines that it did not report.
func TestAnOldFailureDoesNotTellThatASetWasLookedAt(t *testing.T) {
	failed := func(reason string) func(*v1alpha1.MachineSet) {
		return func(set *v1alpha1.MachineSet) {
			unsettled(set)
			set.Status.Conditions = []v1alpha1.MachineSetCondition{{Type: v1alpha1.MachineSetReplicaFailure, Status: v1alpha1.ConditionTrue, Reason: reason}}
		}
	}
	create := failed("FailedCreate")
	for reason, test := range map[string]struct {
		set  *v1alpha1.MachineSet
		want bool
	}{
		"it may still fail":           {setOf("a", 3, reports(2, 2), create), true},
		"one of them may be leaving":  {setOf("a", 3, reports(3, 2), create), true},
		"it has enough":               {setOf("a", 2, reports(2, 2), create), false},
		"it has more":                 {setOf("a", 1, reports(2, 2), create), false},
		"none are asked for":          {setOf("a", 0, create), false},
		"none are, and it is deleted": {setOf("a", 3, reports(0, 0), create, leaving), false},
		"another failure":             {setOf("a", 0, reports(2, 2), failed("FailedDelete")), true},
		"it was looked at since":      {setOf("a", 0, create, func(set *v1alpha1.MachineSet) { set.Status.ObservedGeneration = set.Generation }), true},
	} {
		if got := settled(test.set); got != test.want {
			t.Errorf("%s: settled is %t", reason, got)
		}
	}
	f := gather(newDeployment(3, recreate, class("b")), sets{setOf("a", 0, create)}, noon)
	if got := brief(t, planReplicas(f)); len(got) > 0 {
		t.Errorf("before the old machines are known to be gone, planned is %q", got)
	}
}

// TestNothingIsUnavailableBelowZero: machines that are too many are there for a while.
func TestNothingIsUnavailableBelowZero(t *testing.T) {
	for reason, test := range map[string]struct {
		sets sets
		want int32
	}{
		"some are missing":         {sets{setOf("a", 3, reports(3, 1))}, 2},
		"some are too many":        {sets{setOf("a", 1, reports(4, 4))}, 0},
		"an old set has some left": {sets{setOf("a", 3), setOf("b", 0, reports(2, 2))}, 0},
	} {
		if got := nextStatus(gather(newDeployment(3), test.sets, noon), nil).UnavailableReplicas; got != test.want {
			t.Errorf("%s: %d unavailable, want %d", reason, got, test.want)
		}
	}
}

// TestAPreservedMachineThatLeavesIsNotHeld: somebody deleted it, so a rollout waits until it is
// gone.
func TestAPreservedMachineThatLeavesIsNotHeld(t *testing.T) {
	set := setOf("a", 0, withUID, reports(2, 0), preserved(2))
	s := newServer(newDeployment(2, class("b")), set)
	for _, name := range []string{"stays", "leaves"} {
		machine := member(set, name)
		machine.Finalizers = []string{v1alpha1.FinalizerMCM}
		machine.Annotations = map[string]string{v1alpha1.AnnotationKeyPreserve: "now"}
		machine.Status.CurrentStatus.PreserveExpiryTime = &metav1.Time{Time: noon.Add(time.Hour)}
		must(s.live.Create(t.Context(), machine))
	}
	held := func() int32 {
		f := gather(s.deployment(), sets{s.only(t)}, noon)
		must(s.findHeld(t.Context(), &f))
		return f.held["pool-a"]
	}
	if got := held(); got != 2 {
		t.Errorf("%d are held, want 2", got)
	}
	must(s.live.Delete(t.Context(), s.machine(t, "leaves")))
	if got := held(); got != 1 {
		t.Errorf("when one leaves, %d are held", got)
	}
}

// TestASetThatIsBeingDeletedIsNotAdopted: it has an end of its own.
func TestASetThatIsBeingDeletedIsNotAdopted(t *testing.T) {
	s := newServer(newDeployment(1, class("b")), setOf("a", 1, withUID, mcm, leaving, func(set *v1alpha1.MachineSet) { set.OwnerReferences = nil }))
	s.pass(t)
	s.pass(t)
	if owners := s.all()["pool-a"].OwnerReferences; len(owners) > 0 {
		t.Errorf("it was adopted: %v", owners)
	}
}

// TestEveryFrozenSetIsToldToUnfreeze: also an old one that shall have no machines. As long as it
// is frozen, the deployment says so of itself.
func TestEveryFrozenSetIsToldToUnfreeze(t *testing.T) {
	freeze := func(set *v1alpha1.MachineSet) { set.Labels[v1alpha1.LabelKeyFreeze] = isTrue }
	s := newServer(newDeployment(3, class("b"), func(d *v1alpha1.MachineDeployment) {
		d.Annotations = map[string]string{v1alpha1.AnnotationKeyUnfreeze: isTrue}
	}), setOf("a", 0, withUID, freeze), setOf("b", 3, withUID, freeze), setOf("0", 0, withUID))
	s.Target = nil
	s.pass(t)
	for name, want := range map[string]string{"pool-a": isTrue, "pool-b": isTrue, "pool-0": ""} {
		if got := s.all()[name].Annotations[v1alpha1.AnnotationKeyUnfreeze]; got != want {
			t.Errorf("%s: the annotation is %q, want %q", name, got, want)
		}
	}
	if _, wished := s.deployment().Annotations[v1alpha1.AnnotationKeyUnfreeze]; wished {
		t.Error("the wish is still there")
	}
}
