package conditions

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// TestStorageLockingOnOneMachine: its hosts share the locks of volumes, and no ephemeral disks.
func TestStorageLockingOnOneMachine(t *testing.T) {
	with := &v1alpha1.VirtualMachine{}
	with.Status.VolumeClaimName = "a"
	if is := storageLocking(with, Observation{OneMachine: true}); is.Status != metav1.ConditionTrue {
		t.Errorf("with a volume: %+v", is)
	}
	if is := storageLocking(&v1alpha1.VirtualMachine{}, Observation{OneMachine: true}); is.Status != metav1.ConditionFalse {
		t.Errorf("with an ephemeral disk: %+v", is)
	}
}
