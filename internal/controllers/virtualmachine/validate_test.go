package virtualmachine

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/conditions"
	"github.com/millwright-dev/millwright/test/fixture"
)

func TestInvalid(t *testing.T) {
	cases := map[string]struct {
		given func(*v1alpha1.VirtualMachine)
		want  string
	}{
		"nothing": {func(*v1alpha1.VirtualMachine) {}, ""},
		"a short lease": {func(vm *v1alpha1.VirtualMachine) {
			vm.Spec.LeaseMode, vm.Spec.LeaseDurationSeconds = v1alpha1.LeaseFullLeases, 5
		}, conditions.ReasonInvalid},
		"block volume": {func(vm *v1alpha1.VirtualMachine) {
			vm.Spec.VolumeClaimTemplate.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
		}, ""},
		"disk without size": {func(vm *v1alpha1.VirtualMachine) { vm.Spec.VolumeClaimTemplate.Spec.Resources.Requests = nil }, conditions.ReasonInvalid},
		"no memory left": {func(vm *v1alpha1.VirtualMachine) {
			vm.Spec.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("100Mi")}
		}, conditions.ReasonInvalid},
		"long name": {func(vm *v1alpha1.VirtualMachine) { vm.Name = string(make([]byte, 64)) }, conditions.ReasonInvalid},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			vm := fixture.Named("a", fixture.VirtualMachine())
			c.given(vm)
			got := ""
			if found := conditions.Invalid(vm); found != nil {
				got = found.Reason
			}
			if got != c.want {
				t.Errorf("refused for %q, want %q", got, c.want)
			}
		})
	}
}
