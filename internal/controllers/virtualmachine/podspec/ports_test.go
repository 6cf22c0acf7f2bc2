package podspec

import (
	"maps"
	"testing"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// TestServiceLabels checks that a Pod gets no labels by which other Services or the VM controller select it.
func TestServiceLabels(t *testing.T) {
	vm := &v1alpha1.VirtualMachine{}
	if got := ServiceLabels(vm); len(got) > 0 {
		t.Errorf("a VM without labels has %v", got)
	}
	want := map[string]string{"vm.metropolis.monogon.dev/app": "web", "vm.metropolis.monogon.dev/tier": ""}
	vm.Labels = maps.Clone(want)
	for _, other := range []string{"app", "example.com/app", "sub.vm.metropolis.monogon.dev/app", v1alpha1.LabelVM, v1alpha1.LabelDiskServer, v1alpha1.LabelAntiAffinityGroup} {
		vm.Labels[other] = "x"
	}
	if got := ServiceLabels(vm); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
