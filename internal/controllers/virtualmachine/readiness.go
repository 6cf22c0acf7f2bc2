package virtualmachine

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/authority"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/migration"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podstate"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// Reasons of the condition Ready. After the end of a hypervisor the reason is that of its
// vmpb.Termination, or of its Pod.
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

// cause is why a VM has no hypervisor.
type cause struct {
	// reason is the reason of the condition Ready.
	reason string
	// message names the field or object to change.
	message string
}

// Reasons of the condition Ready while there is no hypervisor.
const (
	reasonUnsupported     = "Unsupported"
	reasonInvalid         = "InvalidSpec"
	reasonAddress         = "AddressUnavailable"
	reasonUserDataMissing = "UserDataMissing"
	reasonClaimTaken      = "VolumeClaimTaken"
	reasonVolumePending   = "VolumePending"
	reasonDiskUnknown     = "DiskUnknown"
	reasonFailed          = "ReconcileError"
)

func causef(reason, format string, args ...any) *cause {
	return &cause{reason: reason, message: fmt.Sprintf(format, args...)}
}

// observation is what a pass observed of a VM.
type observation struct {
	pod       *corev1.Pod              // the authoritative one, nil if there is none
	report    *vmpb.ReportStateRequest // the last one of its hypervisor, nil if this process has none
	hasLease  bool                     // its hypervisor has a run lease open
	cause     *cause                   // why there is no Pod, if the user can change that
	failure   error                    // of the pass
	addresses []string                 // assigned in this pass; nil keeps the known ones
	now       time.Time

	image string // of the next hypervisor

	oneMachine bool // all hosts are on one machine

	noGrowth *cause // why a volume cannot grow; nil if all can

	fence *metav1.Condition // what became of the annotation; nil if there was none

	served serverObservation // of the disks, if a server has them

	target *corev1.Pod // of the migration under way, or of the last one; nil if it is not known
}

// statusOf returns the status of a VM after a pass. The authority stays as it is.
func statusOf(vm *v1alpha1.VirtualMachine, o observation) v1alpha1.VirtualMachineStatus {
	status := *vm.Status.DeepCopy()
	if o.failure == nil {
		status.ObservedGeneration = vm.Generation
	}
	set := func(condition metav1.Condition) {
		condition.ObservedGeneration = status.ObservedGeneration
		condition.LastTransitionTime = metav1.NewTime(o.now)
		meta.SetStatusCondition(&status.Conditions, condition)
	}
	if o.addresses != nil {
		status.Addresses = o.addresses
	}
	if status.NodeName = ""; o.pod == nil {
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionScheduled)
	} else {
		status.NodeName = o.pod.Spec.NodeName
		if text := o.pod.Annotations[v1alpha1.AnnotationAddresses]; text != "" {
			status.Addresses = strings.Split(text, ",")
		}
		set(scheduled(o.pod))
	}
	set(storageLocking(vm, o))
	if o.fence != nil {
		set(*o.fence)
	}
	migration.Progress(&status, o.report, o.target, o.now)
	if !podstate.Alive(o.pod) {
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionLiveMigratable)
	} else if o.report != nil { // else what the last process saw stays
		set(liveMigratable(vm, o.pod, o.report))
	}
	if container := hypervisorOf(o.pod); container != nil {
		set(hypervisorCurrent(container.Image, o.image))
	} else {
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionHypervisorCurrent)
	}
	restartNeeded(vm, o, &status.Conditions, set)
	if served(vm) && vm.DeletionTimestamp.IsZero() {
		set(disksServed(vm, o.served))
	}
	ready := readiness(vm, o)
	ready.Type = v1alpha1.ConditionReady
	set(ready)
	status.Phase = phase(vm, o, ready.Reason)
	if o.report.GetImagePrepared() {
		status.ImagePrepared = true
	}
	return status
}

// hypervisorOf returns the container of a hypervisor that is alive; nil if there is none.
func hypervisorOf(pod *corev1.Pod) *corev1.Container {
	if !podstate.Alive(pod) {
		return nil
	}
	return podspec.Hypervisor(pod)
}

// liveMigratable returns whether the VM would be migrated live.
func liveMigratable(vm *v1alpha1.VirtualMachine, pod *corev1.Pod, report *vmpb.ReportStateRequest) metav1.Condition {
	condition := metav1.Condition{Type: v1alpha1.ConditionLiveMigratable, Status: metav1.ConditionFalse}
	if condition.Reason, condition.Message = migration.Obstacle(vm, pod, report); condition.Reason == migration.NoObstacle {
		condition.Status = metav1.ConditionTrue
	}
	return condition
}

// hypervisorCurrent returns whether a hypervisor has the image that the next one would have.
func hypervisorCurrent(has, next string) metav1.Condition {
	condition := metav1.Condition{Type: v1alpha1.ConditionHypervisorCurrent, Status: metav1.ConditionTrue, Reason: "Current"}
	if has != next {
		condition.Status, condition.Reason = metav1.ConditionFalse, "OtherImage"
		condition.Message = podstate.Truncate(fmt.Sprintf("The hypervisor is of image %s, the next one of %s.", has, next))
	}
	return condition
}

// reasonsOfGuest are those of a VM whose guest has started and not ended.
var reasonsOfGuest = []string{
	reasonRunning, reasonPaused, reasonStopping, v1alpha1.ReasonNoSpace, v1alpha1.ReasonStorageFailed, v1alpha1.ReasonSuspended,
}

func phase(vm *v1alpha1.VirtualMachine, o observation, reason string) v1alpha1.VirtualMachinePhase {
	unprepared := vm.Spec.InitialImage != nil && !vm.Status.ImagePrepared
	switch {
	case !vm.DeletionTimestamp.IsZero():
		return v1alpha1.PhaseTerminating
	case reason == reasonLost, reason == v1alpha1.ReasonLeaseExpiring && podstate.Alive(o.pod):
		return v1alpha1.PhaseLost
	case podstate.Alive(o.pod) && (slices.Contains(reasonsOfGuest, reason) || reason == v1alpha1.ReasonStorageNotRevoked):
		return v1alpha1.PhaseRunning
	case vm.Status.ActivePodUID != "" && !podstate.Alive(o.pod) && !unprepared:
		return v1alpha1.PhaseStopped
	}
	return v1alpha1.PhaseCreating
}

func scheduled(pod *corev1.Pod) metav1.Condition {
	condition := metav1.Condition{Type: v1alpha1.ConditionScheduled, Status: metav1.ConditionFalse, Reason: reasonScheduling}
	if pod.Spec.NodeName != "" {
		condition.Status, condition.Reason = metav1.ConditionTrue, "Scheduled"
	} else if message, unschedulable := podstate.Unschedulable(pod); unschedulable {
		condition.Reason, condition.Message = v1alpha1.ReasonUnschedulable, message
	}
	return condition
}

// readiness returns whether the VM runs as in its spec, and if not, why.
func readiness(vm *v1alpha1.VirtualMachine, o observation) metav1.Condition {
	not := func(reason, message string) metav1.Condition {
		return metav1.Condition{Status: metav1.ConditionFalse, Reason: reason, Message: podstate.Truncate(message)}
	}
	switch {
	case !vm.DeletionTimestamp.IsZero():
		return not(reasonTerminating, "The virtual machine is being deleted.")
	case podstate.Alive(o.pod):
		return livingReadiness(vm, o, not)
	case o.failure != nil:
		return not(reasonFailed, o.failure.Error())
	case o.cause != nil:
		return not(o.cause.reason, o.cause.message+replaceAdvice(vm, o.cause.reason))
	case o.pod != nil:
		end := podstate.EndOf(o.pod)
		return not(end.Reason, end.Message+replaceAdvice(vm, end.Reason))
	case vm.Status.ActivePodUID != "":
		return not(reasonDeleted, fmt.Sprintf("Pod %s was deleted.", vm.Status.ActivePodName))
	}
	return not(reasonCreating, "The hypervisor's pod is being created.")
}

// replaceAdvice says what to do about a disk that is lost; empty for other reasons.
func replaceAdvice(vm *v1alpha1.VirtualMachine, reason string) string {
	if reason != v1alpha1.ReasonDiskLost && reason != v1alpha1.ReasonVolumeLost {
		return ""
	}
	return fmt.Sprintf("; restore it, or give up its data with the annotation %s=%s", v1alpha1.AnnotationReplaceDisk, vm.Status.ActivePodName)
}

func livingReadiness(vm *v1alpha1.VirtualMachine, o observation, not func(reason, message string) metav1.Condition) metav1.Condition {
	if o.pod.Spec.NodeName == "" {
		state := scheduled(o.pod)
		return not(state.Reason, state.Message)
	}
	if lease := vm.Status.Lease; lease != nil && lease.State == v1alpha1.LeaseSuspected {
		return metav1.Condition{
			Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonLeaseExpiring, Message: leaseMessage(vm),
		}
	}
	if authority.AccessOf(vm) == authority.AccessAwaited { // after a switchover
		condition := disksServed(vm, o.served)
		return not(condition.Reason, condition.Message)
	}
	if podstate.HostUnreachable(o.pod) && !o.hasLease {
		return metav1.Condition{
			Status: metav1.ConditionUnknown, Reason: reasonLost,
			Message: fmt.Sprintf("Host %s does not answer; the virtual machine may be running.", o.pod.Spec.NodeName),
		}
	}
	if o.report != nil {
		return reported(vm, o.report, not)
	}
	// A new process has no report yet: the condition of the last one stays, as long as the
	// authority does not move.
	if last := meta.FindStatusCondition(vm.Status.Conditions, v1alpha1.ConditionReady); last != nil && vm.Status.ActiveRunID != "" &&
		slices.Contains(slices.Concat(reasonsOfGuest, []string{reasonPreparing, reasonStarting, v1alpha1.ReasonDiskLocked}), last.Reason) {
		return metav1.Condition{Status: last.Status, Reason: last.Reason, Message: last.Message}
	}
	if reason, message := podstate.Waiting(o.pod); reason != "" {
		return not(reason, message)
	}
	return not(reasonStarting, "The hypervisor starts.")
}

func reported(vm *v1alpha1.VirtualMachine, report *vmpb.ReportStateRequest, not func(reason, message string) metav1.Condition) metav1.Condition {
	message := podstate.Truncate(report.GetMessage())
	as := func(reason string, wanted bool) metav1.Condition {
		condition := not(reason, message)
		if wanted {
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

// reasonsOfCause are the reasons of the condition Ready for what keeps a guest from running.
var reasonsOfCause = map[vmpb.ReportStateRequest_Cause]string{
	vmpb.ReportStateRequest_CAUSE_DISK_LOCKED:    v1alpha1.ReasonDiskLocked,
	vmpb.ReportStateRequest_CAUSE_NO_SPACE:       v1alpha1.ReasonNoSpace,
	vmpb.ReportStateRequest_CAUSE_STORAGE_FAILED: v1alpha1.ReasonStorageFailed,
	vmpb.ReportStateRequest_CAUSE_SUSPENDED:      v1alpha1.ReasonSuspended,
}

// written returns how much of the image is written, in whole MiB.
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
