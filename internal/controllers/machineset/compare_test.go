package machineset

import (
	"slices"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machineset/planner"
	"github.com/millwright-dev/millwright/test/fixture"
)

// TestMachinesOfOthersAreNotCompared: after a write of unknown outcome, the cache of one set is
// compared with what the API server has of that set, not with all that its selector matches.
func TestMachinesOfOthersAreNotCompared(t *testing.T) {
	other := machine("others", func(m *v1alpha1.Machine) { m.OwnerReferences[0].UID = "uid-of-other" })
	s := newServer(newSet(1), machine("a"), other, machine("relabelled", unlabelled))
	c := s.newController()
	c.memory.Of(request.NamespacedName).machines.Doubt()
	pass(t, c)
	if set := s.set(); set.Status.ObservedGeneration != set.Generation {
		t.Errorf("the set is not counted: %+v", set.Status)
	}
}

// TestADeletedSetIsNotLetGoAfterALostAnswer: as long as the API server has a Machine of it that
// the cache lacks, whatever its labels.
func TestADeletedSetIsNotLetGoAfterALostAnswer(t *testing.T) {
	s := newServer(newSet(1, heldBy(v1alpha1.FinalizerMCM)), machine("relabelled", unlabelled))
	c := s.newController()
	c.memory.Of(request.NamespacedName).machines.Doubt()
	must(s.live.Delete(t.Context(), s.set()))
	s.shown = map[string]*v1alpha1.Machine{}
	pass(t, c)
	if !slices.Contains(s.set().Finalizers, v1alpha1.FinalizerMCM) {
		t.Fatal("the set is let go, though it has a machine")
	}
	s.vanishNow("relabelled")
	pass(t, c)
	if !s.setIsGone() {
		t.Error("the set is not let go, though it has no machine")
	}
}

// TestTheDeploymentOfThatNameIsAnother: what replaced a set's deployment says nothing about the
// set.
func TestTheDeploymentOfThatNameIsAnother(t *testing.T) {
	deployment := newParent(100, v1alpha1.RollingUpdateMachineDeploymentStrategyType, "")
	deployment.Namespace, deployment.Name = fixture.Namespace, "owner"
	for uid, want := range map[string]bool{"its own": false, "another": true} {
		t.Run(uid, func(t *testing.T) {
			deployment.UID = "d"
			if want {
				deployment.UID = "e"
			}
			objects := []client.Object{newSet(3, ofDeployment("d", "1")), deployment}
			for _, m := range machines(8) {
				m.Labels = newSet(0, ofDeployment("d", "1")).Spec.Template.Labels
				objects = append(objects, m)
			}
			s := newServer(objects...)
			s.overshoot = &Overshoot{Up: 2, Down: 1}
			pass(t, s.newController())
			if got := planner.Frozen(s.set()); got != want { // the limit of one without a deployment is 8
				t.Errorf("frozen: %t", got)
			}
		})
	}
}
