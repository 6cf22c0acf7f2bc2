package virtualmachine

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/authority"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podstate"
	"github.com/millwright-dev/millwright/internal/vm/lease"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// Reasons of the condition Ready. After a hypervisor has terminated, the reason comes from its vmpb.Termination or
// from its Pod.
const (
	reasonCreating    = authority.ReasonCreating
	reasonScheduling  = "Scheduling"
	reasonPreparing   = "Preparing"
	reasonStarting    = "Starting"
	reasonRunning     = "Running"
	reasonPaused      = "Paused"
	reasonStopping    = "Stopping"
	reasonTerminating = "Terminating"
	reasonLost        = v1alpha1.ReasonHostUnreachable
	reasonDeleted     = "PodDeleted"
)

// Reasons of the condition Ready while there is no hypervisor.
const (
	reasonUnsupported     = "Unsupported"
	reasonInvalid         = "InvalidSpec"
	reasonAddress         = "AddressUnavailable"
	reasonAddressPending  = "AddressPending"
	reasonUserDataMissing = "UserDataMissing"
	reasonClaimTaken      = "VolumeClaimTaken"
	reasonVolumePending   = "VolumePending"
	reasonDiskUnknown     = "DiskUnknown"
	reasonFailed          = "ReconcileError"
)

// readiness returns the condition Ready, which reports whether the VM runs as its spec requests and, if not, why.
func readiness(o observation) metav1.Condition {
	notReady := func(reason, message string) metav1.Condition {
		return metav1.Condition{Status: metav1.ConditionFalse, Reason: reason, Message: podstate.Truncate(message)}
	}
	switch {
	case !o.vm.DeletionTimestamp.IsZero():
		return notReady(reasonTerminating, "The virtual machine is being deleted.")
	case podstate.Alive(o.active):
		return aliveReadiness(o, notReady)
	case o.failure != nil:
		return notReady(reasonFailed, o.failure.Error())
	case o.cause != nil:
		return notReady(o.cause.Reason, o.cause.Message+replaceAdvice(o.vm, o.cause.Reason))
	case o.active != nil:
		end := podstate.EndOf(o.active)
		return notReady(end.Reason, end.Message+replaceAdvice(o.vm, end.Reason))
	case o.vm.Status.ActivePodUID != "":
		return notReady(reasonDeleted, fmt.Sprintf("Pod %s was deleted.", o.vm.Status.ActivePodName))
	}
	return notReady(reasonCreating, "The hypervisor's pod is being created.")
}

// replaceAdvice returns what users can do about a lost disk, or "" for other reasons.
func replaceAdvice(vm *v1alpha1.VirtualMachine, reason string) string {
	if reason != v1alpha1.ReasonDiskLost && reason != v1alpha1.ReasonVolumeLost {
		return ""
	}
	return fmt.Sprintf("; restore it, or set the annotation %s=%s to start with a new, empty disk", v1alpha1.AnnotationReplaceDisk, vm.Status.ActivePodName)
}

func aliveReadiness(o observation, notReady func(reason, message string) metav1.Condition) metav1.Condition {
	if o.active.Spec.NodeName == "" {
		state := scheduled(o.active)
		return notReady(state.Reason, state.Message)
	}
	if lease := o.vm.Status.Lease; lease != nil && lease.State == v1alpha1.LeaseSuspected {
		return metav1.Condition{
			Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonLeaseExpiring, Message: leaseMessage(o.vm),
		}
	}
	if authority.AccessOf(o.vm) == authority.AccessAwaited { // after a switchover
		condition := disksServed(o.scope, o.diskReport)
		return notReady(condition.Reason, condition.Message)
	}
	if podstate.HostUnreachable(o.active) && !o.hasLease {
		return metav1.Condition{
			Status: metav1.ConditionUnknown, Reason: reasonLost,
			Message: fmt.Sprintf("Host %s is unreachable; the virtual machine may still be running.", o.active.Spec.NodeName),
		}
	}
	if o.report != nil {
		return reported(o.vm, o.report, notReady)
	}
	// A new controller process has no report yet. Keep the condition that the last process set while the authority is
	// the same.
	if last := meta.FindStatusCondition(o.vm.Status.Conditions, v1alpha1.ConditionReady); last != nil && o.vm.Status.ActiveRunID != "" &&
		slices.Contains(slices.Concat(reasonsOfGuest, []string{reasonPreparing, reasonStarting, v1alpha1.ReasonDiskLocked}), last.Reason) {
		return metav1.Condition{Status: last.Status, Reason: last.Reason, Message: last.Message}
	}
	if reason, message := podstate.Waiting(o.active); reason != "" {
		return notReady(reason, message)
	}
	return notReady(reasonStarting, "The hypervisor is starting.")
}

func reported(vm *v1alpha1.VirtualMachine, report *vmpb.ReportStateRequest, notReady func(reason, message string) metav1.Condition) metav1.Condition {
	message := podstate.Truncate(report.GetMessage())
	as := func(reason string, ready bool) metav1.Condition {
		condition := notReady(reason, message)
		if ready {
			condition.Status = metav1.ConditionTrue
		}
		return condition
	}
	pausing := vm.Spec.Mode == v1alpha1.ModePause
	switch report.GetState() {
	case vmpb.ReportStateRequest_STATE_RUNNING:
		return as(reasonRunning, !pausing)
	case vmpb.ReportStateRequest_STATE_PAUSED:
		reason, stopped := reasonsOfCause[report.GetCause()]
		return as(cmp.Or(reason, reasonPaused), pausing && !stopped)
	case vmpb.ReportStateRequest_STATE_STOPPING:
		return as(reasonStopping, false)
	case vmpb.ReportStateRequest_STATE_PREPARING:
		if text := written(report.GetDoneBytes(), report.GetTotalBytes()); text != "" {
			message = text
		}
		return as(reasonPreparing, false)
	}
	return as(cmp.Or(reasonsOfCause[report.GetCause()], reasonStarting), false)
}

// reasonsOfCause maps what keeps a guest from running to the reason of the condition Ready.
var reasonsOfCause = map[vmpb.ReportStateRequest_Cause]string{
	vmpb.ReportStateRequest_CAUSE_DISK_LOCKED:    v1alpha1.ReasonDiskLocked,
	vmpb.ReportStateRequest_CAUSE_NO_SPACE:       v1alpha1.ReasonNoSpace,
	vmpb.ReportStateRequest_CAUSE_STORAGE_FAILED: v1alpha1.ReasonStorageFailed,
	vmpb.ReportStateRequest_CAUSE_SUSPENDED:      v1alpha1.ReasonSuspended,
}

// written returns a message with how much of the image is written, in MiB, or "" if that is unknown.
func written(done, total uint64) string {
	const mebi = 1 << 20
	switch {
	case total > 0:
		return fmt.Sprintf("%d MiB of %d MiB written", done/mebi, (total+mebi-1)/mebi)
	case done > 0:
		return fmt.Sprintf("%d MiB written", done/mebi)
	}
	return ""
}

// leaseMessage returns a message with the time at which the lease of a silent hypervisor expires.
func leaseMessage(vm *v1alpha1.VirtualMachine) string {
	return fmt.Sprintf("The hypervisor in pod %s may run the guest until its lease expires; another one starts %v after %s.",
		vm.Status.ActivePodName, lease.Wait(authority.RecordOf(vm.Status.Lease).Duration), vm.Status.Lease.TransitionTime.UTC().Format(time.RFC3339))
}
