package virtualmachine

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// TestStorageLocking_IsReported checks that a VM shows what the lock of its disk protects, which is nothing if each of
// its hypervisors has its own disk.
func TestStorageLocking_IsReported(t *testing.T) {
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
	want("volume", metav1.ConditionUnknown, reasonDependsOnVolume)

	// The condition describes the disk of the existing hypervisor, not that of a changed spec.
	w.change("volume", ephemeral)
	w.eventually("the change is observed", func() bool {
		vm := w.vm("volume")
		return vm.Status.ObservedGeneration == vm.Generation
	})
	want("volume", metav1.ConditionUnknown, reasonDependsOnVolume)
}

// TestStorageLocking_OnOneMachine checks that hosts on one machine share the locks of volumes but not those of
// ephemeral disks.
func TestStorageLocking_OnOneMachine(t *testing.T) {
	with := &v1alpha1.VirtualMachine{}
	with.Status.VolumeClaimName = "a"
	if is := storageLocking(observation{scope: &scope{vm: with}, oneMachine: true}); is.Status != metav1.ConditionTrue {
		t.Errorf("with a volume: %+v", is)
	}
	if is := storageLocking(observation{scope: &scope{vm: &v1alpha1.VirtualMachine{}}, oneMachine: true}); is.Status != metav1.ConditionFalse {
		t.Errorf("with an ephemeral disk: %+v", is)
	}
}
