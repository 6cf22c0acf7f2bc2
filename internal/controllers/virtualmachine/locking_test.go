package virtualmachine

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/conditions"
)

// TestStorageLockingIsShown: a VM says what the lock of its disk protects, which is nothing if
// each of its hypervisors has a disk of its own.
func TestStorageLockingIsShown(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	ephemeral := func(vm *v1alpha1.VirtualMachine) { vm.Spec.VolumeClaimTemplate = nil }
	w.declare("ephemeral", ephemeral)
	w.declare("volume", nil)
	want := func(name string, status metav1.ConditionStatus, reason string) {
		t.Helper()
		pod := w.awaitPod(name, "")
		w.eventually(name+" has the condition", func() bool {
			is := meta.FindStatusCondition(w.vm(name).Status.Conditions, v1alpha1.ConditionStorageLocking)
			return is != nil && is.Status == status && is.Reason == reason && is.Message != ""
		})
		if w.vm(name).Status.ActivePodName != pod.Name {
			t.Errorf("%s has another pod", name)
		}
	}
	want("ephemeral", metav1.ConditionFalse, v1alpha1.ReasonEphemeralDisk)
	want("volume", metav1.ConditionUnknown, conditions.ReasonDependsOnVolume)

	// The disk is that of the hypervisor which is there, not that of a changed spec.
	w.change("volume", ephemeral)
	w.eventually("the change is observed", func() bool {
		vm := w.vm("volume")
		return vm.Status.ObservedGeneration == vm.Generation
	})
	want("volume", metav1.ConditionUnknown, conditions.ReasonDependsOnVolume)
}
