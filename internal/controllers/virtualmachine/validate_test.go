package virtualmachine

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

func TestVirtualMachine_InvalidSpecIsReported(t *testing.T) {
	limited := func(memory string) func(*v1alpha1.VirtualMachine) {
		return func(vm *v1alpha1.VirtualMachine) {
			vm.Spec.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)}
		}
	}
	with := func(memory, limit string) func(*v1alpha1.VirtualMachine) {
		return func(vm *v1alpha1.VirtualMachine) {
			limited(limit)(vm)
			vm.Spec.Memory = ptr.To(resource.MustParse(memory))
		}
	}
	cases := map[string]struct {
		given func(*v1alpha1.VirtualMachine)
		want  string

		accelerator string
	}{
		"valid": {given: func(*v1alpha1.VirtualMachine) {}},
		"short lease": {given: func(vm *v1alpha1.VirtualMachine) {
			vm.Spec.LeaseMode, vm.Spec.LeaseDurationSeconds = v1alpha1.LeaseFullLeases, 5
		}, want: reasonInvalid},
		"block volume": {given: func(vm *v1alpha1.VirtualMachine) {
			vm.Spec.VolumeClaimTemplate.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
		}},
		"disk without size":                     {given: func(vm *v1alpha1.VirtualMachine) { vm.Spec.VolumeClaimTemplate.Spec.Resources.Requests = nil }, want: reasonInvalid},
		"no memory for the hypervisor":          {given: limited("100Mi"), want: reasonInvalid},
		"no memory for the guest, KVM":          {given: limited("192Mi"), want: reasonInvalid, accelerator: "kvm"},
		"enough memory, KVM":                    {given: limited("256Mi"), accelerator: "kvm"},
		"no memory for the guest, emulation":    {given: limited("256Mi"), want: reasonInvalid, accelerator: "tcg"},
		"no memory for the guest, KVM optional": {given: limited("256Mi"), want: reasonInvalid, accelerator: "auto"},
		"memory set, emulation":                 {given: with("64Mi", "100Mi"), accelerator: "tcg"},
		"as much memory as the limit":           {given: with("512Mi", "512Mi"), want: reasonInvalid, accelerator: "kvm"},
		"more memory than the limit":            {given: with("1Gi", "512Mi"), want: reasonInvalid},
		"long name":                             {given: func(vm *v1alpha1.VirtualMachine) { vm.Name = string(make([]byte, 64)) }, want: reasonInvalid},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			vm := fixture.Named("a", fixture.VirtualMachine())
			c.given(vm)
			got := ""
			if found := invalid(vm, podspec.Settings{Accelerator: c.accelerator}); found != nil {
				got = found.Reason
			}
			if got != c.want {
				t.Errorf("refused for %q, want %q", got, c.want)
			}
		})
	}
}
