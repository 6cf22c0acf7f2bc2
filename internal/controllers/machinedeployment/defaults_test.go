package machinedeployment

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// TestMachineDeployment_DefaultsAreNotWritten checks that defaults are never written to the spec.
func TestMachineDeployment_DefaultsAreNotWritten(t *testing.T) {
	for given, strategy := range map[string]change{
		"no strategy": func(*v1alpha1.MachineDeployment) {},
		"only its type": func(d *v1alpha1.MachineDeployment) {
			d.Spec.Strategy.Type = v1alpha1.RollingUpdateMachineDeploymentStrategyType
		},
		"no numbers": fixture.Rolling("", ""),
		"both are 0": fixture.Rolling("0", "0"),
	} {
		t.Run(given, func(t *testing.T) {
			declared := fixture.Deployment(2, strategy)
			s := newServer(declared.DeepCopy())
			s.Target = nil
			for _, step := range []struct {
				name           string
				change, effect change // what the user does, and how it changes the spec
			}{
				{"created", nil, nil},
				{"scaled", func(d *v1alpha1.MachineDeployment) { d.Spec.Replicas = 4 }, nil},
				{"rolled", fixture.OfClass("b"), nil},
				{"rolled back", rollbackTo(1), fixture.OfClass("a")},
			} {
				if step.change != nil {
					s.change(step.change)
					step.change(declared)
				}
				if step.effect != nil {
					step.effect(declared)
					declared.Spec.RollbackTo = nil
				}
				for range 12 {
					s.pass(t)
					s.settle(t)
				}
				is := s.deployment()
				if is.Status.AvailableReplicas != declared.Spec.Replicas || progressOf(is.Status).Reason != v1alpha1.DeploymentReasonComplete {
					t.Fatalf("%s: the rollout is not complete: %+v", step.name, is.Status)
				}
				if diff := cmp.Diff(declared.Spec, is.Spec); diff != "" {
					t.Errorf("%s: want - got +\n%s", step.name, diff)
				}
			}
		})
	}
}

// settle simulates the MachineSet controller: every set has its desired machines immediately.
func (s *server) settle(t *testing.T) {
	t.Helper()
	for name, set := range s.all() {
		n := set.Spec.Replicas
		s.setSet(t, name, func(set *v1alpha1.MachineSet) {
			set.Status.ObservedGeneration = set.Generation
			fixture.Reports(n, n)(set)
		})
	}
}
