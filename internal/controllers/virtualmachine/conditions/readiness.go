// Package conditions makes the status of a virtual machine from what a pass observed of it.
package conditions

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
	"github.com/millwright-dev/millwright/internal/vm/lease"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// Reasons of the condition Ready. After the end of a hypervisor the reason is that of its
// vmpb.Termination, or of its Pod.
const (
	ReasonCreating    = authority.ReasonCreating
	ReasonScheduling  = "Scheduling"
	ReasonPreparing   = "Preparing"
	ReasonStarting    = "Starting"
	ReasonRunning     = "Running"
	ReasonPaused      = "Paused"
	ReasonStopping    = "Stopping"
	ReasonTerminating = "Terminating"
	ReasonLost        = v1alpha1.ReasonHostUnreachable
	ReasonDeleted     = "PodDeleted"
)

// Cause is why a VM has no hypervisor.
type Cause struct {
	// Reason is the reason of the condition Ready.
	Reason string
	// Message names the field or object to change.
	Message string
}

// Reasons of the condition Ready while there is no hypervisor.
const (
	ReasonUnsupported     = "Unsupported"
	ReasonInvalid         = "InvalidSpec"
	ReasonAddress         = "AddressUnavailable"
	ReasonUserDataMissing = "UserDataMissing"
	ReasonClaimTaken      = "VolumeClaimTaken"
	ReasonVolumePending   = "VolumePending"
	ReasonDiskUnknown     = "DiskUnknown"
	ReasonFailed          = "ReconcileError"
)

// Causef returns a Cause.
func Causef(reason, format string, args ...any) *Cause {
	return &Cause{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// Observation is what a pass observed of a VM.
type Observation struct {
	Pod       *corev1.Pod              // the authoritative one, nil if there is none
	Report    *vmpb.ReportStateRequest // the last one of its hypervisor, nil if this process has none
	HasLease  bool                     // its hypervisor has a run lease open
	Cause     *Cause                   // why there is no Pod, if the user can change that
	Failure   error                    // of the pass
	Addresses []string                 // assigned in this pass; nil keeps the known ones
	Now       time.Time

	Image    string           // of the next hypervisor
	Settings podspec.Settings // of the same

	OneMachine bool // all hosts are on one machine

	NoGrowth *Cause // why a volume cannot grow; nil if all can

	Fence *metav1.Condition // what became of the annotation; nil if there was none

	Served Server // of the disks, if a server has them

	Target *corev1.Pod // of the migration under way, or of the last one; nil if it is not known
}

// StatusOf returns the status of a VM after a pass. The authority stays as it is.
func StatusOf(vm *v1alpha1.VirtualMachine, o Observation) v1alpha1.VirtualMachineStatus {
	status := *vm.Status.DeepCopy()
	if o.Failure == nil {
		status.ObservedGeneration = vm.Generation
	}
	set := func(condition metav1.Condition) {
		condition.ObservedGeneration = status.ObservedGeneration
		condition.LastTransitionTime = metav1.NewTime(o.Now)
		meta.SetStatusCondition(&status.Conditions, condition)
	}
	if o.Addresses != nil {
		status.Addresses = o.Addresses
	}
	if status.NodeName = ""; o.Pod == nil {
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionScheduled)
	} else {
		status.NodeName = o.Pod.Spec.NodeName
		if text := o.Pod.Annotations[v1alpha1.AnnotationAddresses]; text != "" {
			status.Addresses = strings.Split(text, ",")
		}
		set(scheduled(o.Pod))
	}
	set(storageLocking(vm, o))
	if o.Fence != nil {
		set(*o.Fence)
	}
	migration.Progress(&status, o.Report, o.Target, o.Now)
	if !podstate.Alive(o.Pod) {
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionLiveMigratable)
	} else if o.Report != nil { // else what the last process saw stays
		set(liveMigratable(vm, o.Pod, o.Report))
	}
	if container := hypervisorOf(o.Pod); container != nil {
		set(hypervisorCurrent(container.Image, o.Image))
	} else {
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionHypervisorCurrent)
	}
	restartNeeded(vm, o, &status.Conditions, set)
	if podspec.Served(vm) && vm.DeletionTimestamp.IsZero() {
		set(DisksServed(vm, o.Served))
	}
	ready := readiness(vm, o)
	ready.Type = v1alpha1.ConditionReady
	set(ready)
	status.Phase = phase(vm, o, ready.Reason)
	if o.Report.GetImagePrepared() {
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
	ReasonRunning, ReasonPaused, ReasonStopping, v1alpha1.ReasonNoSpace, v1alpha1.ReasonStorageFailed, v1alpha1.ReasonSuspended,
}

func phase(vm *v1alpha1.VirtualMachine, o Observation, reason string) v1alpha1.VirtualMachinePhase {
	unprepared := vm.Spec.InitialImage != nil && !vm.Status.ImagePrepared
	switch {
	case !vm.DeletionTimestamp.IsZero():
		return v1alpha1.PhaseTerminating
	case reason == ReasonLost, reason == v1alpha1.ReasonLeaseExpiring && podstate.Alive(o.Pod):
		return v1alpha1.PhaseLost
	case podstate.Alive(o.Pod) && (slices.Contains(reasonsOfGuest, reason) || reason == v1alpha1.ReasonStorageNotRevoked):
		return v1alpha1.PhaseRunning
	case vm.Status.ActivePodUID != "" && !podstate.Alive(o.Pod) && !unprepared:
		return v1alpha1.PhaseStopped
	}
	return v1alpha1.PhaseCreating
}

func scheduled(pod *corev1.Pod) metav1.Condition {
	condition := metav1.Condition{Type: v1alpha1.ConditionScheduled, Status: metav1.ConditionFalse, Reason: ReasonScheduling}
	if pod.Spec.NodeName != "" {
		condition.Status, condition.Reason = metav1.ConditionTrue, "Scheduled"
	} else if message, unschedulable := podstate.Unschedulable(pod); unschedulable {
		condition.Reason, condition.Message = v1alpha1.ReasonUnschedulable, message
	}
	return condition
}

// readiness returns whether the VM runs as in its spec, and if not, why.
func readiness(vm *v1alpha1.VirtualMachine, o Observation) metav1.Condition {
	not := func(reason, message string) metav1.Condition {
		return metav1.Condition{Status: metav1.ConditionFalse, Reason: reason, Message: podstate.Truncate(message)}
	}
	switch {
	case !vm.DeletionTimestamp.IsZero():
		return not(ReasonTerminating, "The virtual machine is being deleted.")
	case podstate.Alive(o.Pod):
		return livingReadiness(vm, o, not)
	case o.Failure != nil:
		return not(ReasonFailed, o.Failure.Error())
	case o.Cause != nil:
		return not(o.Cause.Reason, o.Cause.Message+replaceAdvice(vm, o.Cause.Reason))
	case o.Pod != nil:
		end := podstate.EndOf(o.Pod)
		return not(end.Reason, end.Message+replaceAdvice(vm, end.Reason))
	case vm.Status.ActivePodUID != "":
		return not(ReasonDeleted, fmt.Sprintf("Pod %s was deleted.", vm.Status.ActivePodName))
	}
	return not(ReasonCreating, "The hypervisor's pod is being created.")
}

// replaceAdvice says what to do about a disk that is lost; empty for other reasons.
func replaceAdvice(vm *v1alpha1.VirtualMachine, reason string) string {
	if reason != v1alpha1.ReasonDiskLost && reason != v1alpha1.ReasonVolumeLost {
		return ""
	}
	return fmt.Sprintf("; restore it, or give up its data with the annotation %s=%s", v1alpha1.AnnotationReplaceDisk, vm.Status.ActivePodName)
}

func livingReadiness(vm *v1alpha1.VirtualMachine, o Observation, not func(reason, message string) metav1.Condition) metav1.Condition {
	if o.Pod.Spec.NodeName == "" {
		state := scheduled(o.Pod)
		return not(state.Reason, state.Message)
	}
	if lease := vm.Status.Lease; lease != nil && lease.State == v1alpha1.LeaseSuspected {
		return metav1.Condition{
			Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonLeaseExpiring, Message: LeaseMessage(vm),
		}
	}
	if authority.AccessOf(vm) == authority.AccessAwaited { // after a switchover
		condition := DisksServed(vm, o.Served)
		return not(condition.Reason, condition.Message)
	}
	if podstate.HostUnreachable(o.Pod) && !o.HasLease {
		return metav1.Condition{
			Status: metav1.ConditionUnknown, Reason: ReasonLost,
			Message: fmt.Sprintf("Host %s does not answer; the virtual machine may be running.", o.Pod.Spec.NodeName),
		}
	}
	if o.Report != nil {
		return reported(vm, o.Report, not)
	}
	// A new process has no report yet: the condition of the last one stays, as long as the
	// authority does not move.
	if last := meta.FindStatusCondition(vm.Status.Conditions, v1alpha1.ConditionReady); last != nil && vm.Status.ActiveRunID != "" &&
		slices.Contains(slices.Concat(reasonsOfGuest, []string{ReasonPreparing, ReasonStarting, v1alpha1.ReasonDiskLocked}), last.Reason) {
		return metav1.Condition{Status: last.Status, Reason: last.Reason, Message: last.Message}
	}
	if reason, message := podstate.Waiting(o.Pod); reason != "" {
		return not(reason, message)
	}
	return not(ReasonStarting, "The hypervisor starts.")
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
		return as(ReasonRunning, !pausing)
	case vmpb.ReportStateRequest_STATE_PAUSED:
		reason, stopped := reasonsOfCause[report.GetCause()]
		return as(cmp.Or(reason, ReasonPaused), pausing && !stopped)
	case vmpb.ReportStateRequest_STATE_STOPPING:
		return as(ReasonStopping, false)
	case vmpb.ReportStateRequest_STATE_PREPARING:
		if text := written(report.GetDoneBytes(), report.GetTotalBytes()); text != "" {
			message = text
		}
		return as(ReasonPreparing, false)
	}
	return as(cmp.Or(reasonsOfCause[report.GetCause()], ReasonStarting), false)
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

// LeaseMessage says how long a hypervisor that is not heard may run its guest.
func LeaseMessage(vm *v1alpha1.VirtualMachine) string {
	return fmt.Sprintf("The hypervisor in pod %s may still run the guest, until its lease has expired: another one is started %v after %s.",
		vm.Status.ActivePodName, lease.Wait(authority.RecordOf(vm.Status.Lease).Duration), vm.Status.Lease.TransitionTime.UTC().Format(time.RFC3339))
}
