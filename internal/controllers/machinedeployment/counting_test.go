package machinedeployment

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/planner"
)

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
	retained := func() int32 {
		f := planner.NewFacts(s.deployment(), sets{s.only(t)}, noon)
		of, err := s.retained(t.Context(), f)
		must(err)
		return of["pool-a"]
	}
	if got := retained(); got != 2 {
		t.Errorf("%d are held, want 2", got)
	}
	must(s.live.Delete(t.Context(), s.machine(t, "leaves")))
	if got := retained(); got != 1 {
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
