package machinedeployment

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/planner"
	"github.com/millwright-dev/millwright/test/fixture"
)

// TestAPreservedMachineThatLeavesIsNotHeld: somebody deleted it, so a rollout waits until it is
// gone.
func TestAPreservedMachineThatLeavesIsNotHeld(t *testing.T) {
	set := fixture.Set("a", 0, fixture.WithUID, fixture.Reports(2, 0), fixture.PreservedFailed(2))
	s := newServer(fixture.Deployment(2, fixture.OfClass("b")), set)
	for _, name := range []string{"stays", "leaves"} {
		machine := fixture.Member(set, name)
		machine.Finalizers = []string{v1alpha1.FinalizerMCM}
		machine.Annotations = map[string]string{v1alpha1.AnnotationKeyPreserve: "now"}
		machine.Status.CurrentStatus.PreserveExpiryTime = &metav1.Time{Time: fixture.Noon.Add(time.Hour)}
		must(s.live.Create(t.Context(), machine))
	}
	retained := func() int32 {
		f := planner.NewFacts(s.deployment(), sets{s.only(t)}, fixture.Noon)
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
	s := newServer(fixture.Deployment(1, fixture.OfClass("b")), fixture.Set("a", 1, fixture.WithUID, mcm, fixture.Leaving, func(set *v1alpha1.MachineSet) { set.OwnerReferences = nil }))
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
	s := newServer(fixture.Deployment(3, fixture.OfClass("b"), func(d *v1alpha1.MachineDeployment) {
		d.Annotations = map[string]string{v1alpha1.AnnotationKeyUnfreeze: isTrue}
	}), fixture.Set("a", 0, fixture.WithUID, freeze), fixture.Set("b", 3, fixture.WithUID, freeze), fixture.Set("0", 0, fixture.WithUID))
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
