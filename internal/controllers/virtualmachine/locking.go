package virtualmachine

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
)

// Reasons of the condition StorageLocking for a disk on a volume.
const (
	reasonDependsOnVolume = "DependsOnVolume"
	reasonOneMachine      = "OneMachine"
	reasonFullLeases      = "FullLeases"
)

// storageLocking returns the condition that tells whether the lock of the disk excludes a second hypervisor. The disk is
// that of the Pod or, without one, of the next Pod.
func storageLocking(o observation) metav1.Condition {
	condition := metav1.Condition{Type: v1alpha1.ConditionStorageLocking}
	onVolume := o.vm.Status.VolumeClaimName != "" || o.vm.Spec.VolumeClaimTemplate != nil
	if o.active != nil {
		onVolume = podspec.ClaimName(o.active) != ""
	}
	switch {
	case podspec.Served(o.vm):
		condition.Status, condition.Reason = metav1.ConditionFalse, string(v1alpha1.DiskAccessServed)
		condition.Message = "Not needed: the server of the disks refuses all hypervisors but the one with the current fencing token."
	case o.vm.Status.Lease != nil:
		condition.Status, condition.Reason = metav1.ConditionFalse, reasonFullLeases
		condition.Message = "Not needed: leases that expire keep a second guest from running."
	case !onVolume:
		condition.Status, condition.Reason = metav1.ConditionFalse, v1alpha1.ReasonEphemeralDisk
		condition.Message = "Each hypervisor has a disk of its own: while a host cannot be reached, its guest may run beside a new one."
	case o.oneMachine:
		condition.Status, condition.Reason = metav1.ConditionTrue, reasonOneMachine
		condition.Message = "All hosts are on one machine and open the same file."
	case podspec.OnDevices(o.vm, o.active):
		condition.Status, condition.Reason = metav1.ConditionUnknown, reasonDependsOnVolume
		condition.Message = "The lock of a block device excludes others on the same host only; the VM controller cannot tell whether two hosts can have the volume at once."
	default:
		condition.Status, condition.Reason = metav1.ConditionUnknown, reasonDependsOnVolume
		condition.Message = "The lock protects a volume on one host, or one whose storage keeps locks across hosts; the VM controller cannot tell."
	}
	return condition
}
