package virtualmachine

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
)

// Reasons of the condition StorageLocking for disks on volumes.
const (
	reasonDependsOnVolume = "DependsOnVolume"
	reasonOneMachine      = "OneMachine"
	reasonFullLeases      = "FullLeases"
)

// storageLocking returns the condition StorageLocking, which reports whether the lock of the disk excludes a second
// hypervisor. The disk is that of the active Pod or, if there is none, that of the next Pod.
func storageLocking(o observation) metav1.Condition {
	condition := metav1.Condition{Type: v1alpha1.ConditionStorageLocking}
	onVolume := o.vm.Status.VolumeClaimName != "" || o.vm.Spec.VolumeClaimTemplate != nil
	if o.active != nil {
		onVolume = podspec.ClaimName(o.active) != ""
	}
	switch {
	case podspec.Served(o.vm):
		condition.Status, condition.Reason = metav1.ConditionFalse, string(v1alpha1.DiskAccessServed)
		condition.Message = "Not needed: the disk server accepts only the hypervisor with the current fencing token."
	case o.vm.Status.Lease != nil:
		condition.Status, condition.Reason = metav1.ConditionFalse, reasonFullLeases
		condition.Message = "Not needed: a second guest cannot run before the lease of the first one has expired."
	case !onVolume:
		condition.Status, condition.Reason = metav1.ConditionFalse, v1alpha1.ReasonEphemeralDisk
		condition.Message = "Each hypervisor has its own disk; while a host is unreachable, its guest may run at the same time as a new one."
	case o.oneMachine:
		condition.Status, condition.Reason = metav1.ConditionTrue, reasonOneMachine
		condition.Message = "All hosts run on one machine and open the same file."
	case podspec.OnDevices(o.vm, o.active):
		condition.Status, condition.Reason = metav1.ConditionUnknown, reasonDependsOnVolume
		condition.Message = "The lock of a block device is effective only on one host; the VM controller does not know whether two hosts can attach the volume at the same time."
	default:
		condition.Status, condition.Reason = metav1.ConditionUnknown, reasonDependsOnVolume
		condition.Message = "The lock protects volumes that are local to one host or whose storage supports locks across hosts; the VM controller does not know whether this applies."
	}
	return condition
}
