package machinedeployment

import (
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// TestMachineDeployment_PausedRecordsSize checks the size for which sets are scaled. It is smaller than the desired
// size while machines have to wait for the deletion of others.
func TestMachineDeployment_PausedRecordsSize(t *testing.T) {
	for reason, test := range map[string]struct {
		sets sets
		want map[string][]string
	}{
		"there is nothing to scale":   {sets{fixture.Set("a", 5, fixture.ScaledFor(7, 8)), fixture.Set("b", 3, fixture.ScaledFor(7, 8))}, map[string][]string{"pool-a": {"5", "8"}, "pool-b": {"3", "8"}}},
		"everything":                  {sets{fixture.Set("a", 3, fixture.ScaledFor(4, 5)), fixture.Set("b", 1, fixture.ScaledFor(4, 5))}, map[string][]string{"pool-a": {"6", "8"}, "pool-b": {"2", "8"}}},
		"some of it":                  {sets{fixture.Set("a", 3, fixture.ScaledFor(4, 5), fixture.Reports(5, 3)), fixture.Set("b", 1, fixture.ScaledFor(4, 5))}, map[string][]string{"pool-a": {"5", "7"}, "pool-b": {"2", "7"}}},
		"nothing yet":                 {sets{fixture.Set("a", 3, fixture.ScaledFor(4, 5), fixture.Reports(8, 3)), fixture.Set("b", 1, fixture.ScaledFor(4, 5))}, map[string][]string{"pool-a": {"3", "4"}, "pool-b": {"1", "4"}}},
		"the current set grows":       {sets{fixture.Set("a", 3, fixture.ScaledFor(4, 5)), fixture.Set("c", 1, fixture.ScaledFor(4, 5))}, map[string][]string{"pool-a": {"3", "8"}, "pool-c": {"6", "8"}}},
		"the current set grows a bit": {sets{fixture.Set("a", 3, fixture.ScaledFor(4, 5), fixture.Reports(5, 3)), fixture.Set("c", 1, fixture.ScaledFor(4, 5))}, map[string][]string{"pool-a": {"3", "4"}, "pool-c": {"4", "8"}}},
	} {
		t.Run(reason, func(t *testing.T) {
			s := newServer(fixture.Deployment(8, fixture.Paused, fixture.Rolling("1", "1"), fixture.OfClass("c")), test.sets[0], test.sets[1])
			s.Target = nil
			for range 2 { // the second pass updates the sets that were not scaled
				before := s.all()
				s.pass(t)
				for name, set := range s.all() {
					set.Status.Replicas += set.Spec.Replicas - before[name].Spec.Replicas
					must(s.live.Status().Update(t.Context(), set))
				}
			}
			got := map[string][]string{}
			for name, set := range s.all() {
				got[name] = []string{strconv.Itoa(int(set.Spec.Replicas)), set.Annotations[v1alpha1.AnnotationKeyDesiredReplicas]}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("want - got +\n%s", diff)
			}
		})
	}
}

func TestMachineDeployment_PropagatesToCurrentSet(t *testing.T) {
	for _, paused := range []bool{false, true} {
		s := newServer(fixture.Deployment(3, func(d *v1alpha1.MachineDeployment) {
			d.Spec.Paused, d.Spec.MinReadySeconds, d.Spec.AutoPreserveFailedMachineMax = paused, 9, 2
			d.Annotations = map[string]string{v1alpha1.AnnotationKeyMachineEffectiveCreationTimeout: "40m", v1alpha1.AnnotationKeyPreferNoSchedule: "x"}
			d.Spec.Template.Spec.NodeTemplateSpec.Spec.Taints = []corev1.Taint{{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}}
		}), fixture.Set("a", 3))
		s.Target = nil
		s.pass(t)
		set := s.only(t)
		if set.Spec.MinReadySeconds != 9 || set.Spec.AutoPreserveFailedMachineMax != 2 || len(set.Spec.Template.Spec.NodeTemplateSpec.Spec.Taints) != 1 {
			t.Errorf("paused %t: %+v", paused, set.Spec)
		}
		annotations := map[string]string{
			v1alpha1.AnnotationKeyMachineEffectiveCreationTimeout: "40m", v1alpha1.AnnotationKeyRevision: "1",
			v1alpha1.AnnotationKeyDesiredReplicas: "3", v1alpha1.AnnotationKeyMaxReplicas: "3",
		}
		if diff := cmp.Diff(annotations, set.Annotations); diff != "" {
			t.Errorf("paused %t: want - got +\n%s", paused, diff)
		}
	}
}
