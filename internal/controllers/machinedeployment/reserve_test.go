package machinedeployment

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// TestMachineDeployment_ReserveIsInStatus checks clusters with and without the fields for the reserve. With MCM's CRDs, the
// API server prunes both fields, and the missing number in the status must not cause a write in each pass.
func TestMachineDeployment_ReserveIsInStatus(t *testing.T) {
	for name, test := range map[string]struct {
		change change
		writes int
	}{
		"by the field": {func(d *v1alpha1.MachineDeployment) { d.Spec.ExcessReplicas = ptr.To(intstr.FromInt32(2)) }, 1},
		"by the annotation, and pruned": {func(d *v1alpha1.MachineDeployment) {
			metav1.SetMetaDataAnnotation(&d.ObjectMeta, v1alpha1.AnnotationKeyExcessReplicas, "2")
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(fixture.Deployment(3, test.change))
			s.Target = nil
			s.pass(t)
			set := s.only(t)
			if share := set.Annotations[v1alpha1.AnnotationKeyExcessReplicas]; set.Spec.Replicas != 5 || share != "2" {
				t.Fatalf("the set has %d replicas, reserve %q", set.Spec.Replicas, share)
			}
			s.setSet(t, set.Name, fixture.Reports(5, 5))
			s.pass(t)
			s.pass(t)
			status := s.deployment().Status
			if status.Replicas != 3 || status.AvailableReplicas != 3 || status.ExcessReplicas != 2 {
				t.Fatalf("status: %d replicas, %d available, %d in the reserve", status.Replicas, status.AvailableReplicas, status.ExcessReplicas)
			}
			pruned := s.deployment()
			pruned.Status.ExcessReplicas = 0
			must(s.live.Status().Update(t.Context(), pruned))
			s.writes = nil
			s.pass(t)
			if n := len(s.writes); n != test.writes {
				t.Errorf("%d writes, want %d: %s", n, test.writes, strings.Join(s.writes, ", "))
			}
		})
	}
}
