package machinedeployment

import (
	"testing"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/fixture"
)

// TestTheTaintsOfASetThatIsCurrentAgainDoNotWait: the rollout ended before it had made a machine,
// so there is none to come back from, and one of its machines is not available.
func TestTheTaintsOfASetThatIsCurrentAgainDoNotWait(t *testing.T) {
	s := rollout(t, 2, 0)
	s.setSet(t, "pool-a", fixture.Reports(2, 1))
	s.pass(t)
	if got, want := s.marksOf(t, "pool-a-0"), tainted+" "+protected; got != want {
		t.Fatalf("in the rollout it bears %q, want %q", got, want)
	}
	s.setSet(t, "pool-a", func(set *v1alpha1.MachineSet) { set.Spec.Replicas = 2 })
	s.setSet(t, "pool-b", func(set *v1alpha1.MachineSet) { set.Spec.Replicas = 0; fixture.Reports(0, 0)(set) })
	s.change(fixture.OfClass("a"))
	for range 3 {
		s.pass(t)
	}
	if got := s.marksOf(t, "pool-a-0"); got != protected {
		t.Errorf("back again it bears %q, want %q", got, protected)
	}
	if got, marked := s.all()["pool-a"].Annotations[v1alpha1.AnnotationKeyPreferNoSchedule]; marked {
		t.Errorf("the set still says that its nodes are tainted: %q", got)
	}
}

// TestNodesAreProtectedUntilAllMachinesAreAvailable: when the last old machine is gone, a new one
// may still be coming up.
func TestNodesAreProtectedUntilAllMachinesAreAvailable(t *testing.T) {
	s := rollout(t, 2, 1)
	s.pass(t)
	finish(t, s)
	s.setSet(t, "pool-b", fixture.Reports(2, 1))
	s.pass(t)
	s.pass(t)
	if got := s.marksOf(t, "pool-b-0"); got != protected {
		t.Errorf("while one is not available it bears %q, want %q", got, protected)
	}
	s.setSet(t, "pool-b", fixture.Reports(2, 2))
	s.pass(t)
	if got := s.marksOf(t, "pool-b-0"); got != "" {
		t.Errorf("when all are available it bears %q", got)
	}
}
