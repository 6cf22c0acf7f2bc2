package virtualmachine

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/migration"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podstate"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/service"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// observation is the input for the status of a VM: the state of a pass, and what is known about the VM at its end.
type observation struct {
	*scope
	settings   podspec.Settings         // of the next hypervisor
	oneMachine bool                     // all hosts run on one machine
	report     *vmpb.ReportStateRequest // last report of its hypervisor; nil if this process has none
	diskReport *vmpb.ReportStateRequest // last report of its disk server; nil if this process has none
	silence    *service.Silence         // other hypervisors that do not respond to its hypervisor; nil if all do
	hasLease   bool                     // its hypervisor has an open run lease
	failure    error                    // error of the pass
}

// statusOf returns the status of a VM after a pass. It does not change the authority.
func statusOf(o observation) v1alpha1.VirtualMachineStatus {
	status := *o.vm.Status.DeepCopy()
	if o.failure == nil {
		status.ObservedGeneration = o.vm.Generation
	}
	set := func(condition metav1.Condition) {
		condition.ObservedGeneration = status.ObservedGeneration
		condition.LastTransitionTime = metav1.NewTime(o.now)
		meta.SetStatusCondition(&status.Conditions, condition)
	}
	if o.addresses != nil {
		status.Addresses = o.addresses
	}
	if status.NodeName = ""; o.active == nil {
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionScheduled)
	} else {
		status.NodeName = o.active.Spec.NodeName
		if addresses := podspec.Addresses(o.active); len(addresses) > 0 {
			status.Addresses = addresses
		}
		set(scheduled(o.active))
	}
	set(storageLocking(o))
	if o.fence != nil {
		set(*o.fence)
	}
	migration.Progress(&status, o.report, o.targetPod(), o.now)
	if !podstate.Alive(o.active) {
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionLiveMigratable)
	} else if o.report != nil { // otherwise keep the condition that the last process set
		set(liveMigratable(o.vm, o.active, o.report))
	}
	if container := hypervisorOf(o.active); container != nil {
		set(hypervisorCurrent(container.Image, podspec.Image(o.vm, o.settings)))
	} else {
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionHypervisorCurrent)
	}
	restartNeeded(o, &status.Conditions, set)
	guestsUnreachable(o, &status.Conditions, set)
	guestReady(o, &status.Conditions, set)
	if podspec.Served(o.vm) && o.vm.DeletionTimestamp.IsZero() {
		set(disksServed(o.scope, o.diskReport))
	}
	ready := readiness(o)
	ready.Type = v1alpha1.ConditionReady
	set(ready)
	status.Phase = phase(o, ready.Reason)
	if o.report.GetImagePrepared() {
		status.ImagePrepared = true
	}
	if guestShutDown(o.active) {
		status.ShutDownPodUID = o.active.UID
	}
	return status
}

// hypervisorOf returns the hypervisor container of a Pod, or nil if the hypervisor is not alive.
func hypervisorOf(pod *corev1.Pod) *corev1.Container {
	if !podstate.Alive(pod) {
		return nil
	}
	return podspec.Hypervisor(pod)
}

// liveMigratable returns the condition LiveMigratable.
func liveMigratable(vm *v1alpha1.VirtualMachine, pod *corev1.Pod, report *vmpb.ReportStateRequest) metav1.Condition {
	condition := metav1.Condition{Type: v1alpha1.ConditionLiveMigratable, Status: metav1.ConditionFalse}
	if condition.Reason, condition.Message = migration.Obstacle(vm, pod, report); condition.Reason == migration.NoObstacle {
		condition.Status = metav1.ConditionTrue
	}
	return condition
}

// hypervisorCurrent returns the condition HypervisorCurrent, which compares the image of a hypervisor with that of
// the next one.
func hypervisorCurrent(has, next string) metav1.Condition {
	condition := metav1.Condition{Type: v1alpha1.ConditionHypervisorCurrent, Status: metav1.ConditionTrue, Reason: "Current"}
	if has != next {
		condition.Status, condition.Reason = metav1.ConditionFalse, "OtherImage"
		condition.Message = podstate.Truncate(fmt.Sprintf("The hypervisor runs image %s; the next one will run %s.", has, next))
	}
	return condition
}

// reasonsOfGuest are the reasons of the condition Ready for a VM whose guest has started and has not terminated.
var reasonsOfGuest = []string{
	reasonRunning, reasonPaused, reasonStopping, v1alpha1.ReasonNoSpace, v1alpha1.ReasonStorageFailed, v1alpha1.ReasonSuspended,
}

// reasonsOfStop are the reasons of the condition Ready for a VM whose guest spec.runStrategy does not start.
var reasonsOfStop = []string{v1alpha1.ReasonHalted, v1alpha1.ReasonCompleted}

func phase(o observation, reason string) v1alpha1.VirtualMachinePhase {
	unprepared := o.vm.Spec.InitialImage != nil && !o.vm.Status.ImagePrepared
	switch {
	case !o.vm.DeletionTimestamp.IsZero():
		return v1alpha1.PhaseTerminating
	case !podstate.Alive(o.active) && slices.Contains(reasonsOfStop, reason):
		return v1alpha1.PhaseStopped
	case reason == reasonLost, reason == v1alpha1.ReasonLeaseExpiring && podstate.Alive(o.active):
		return v1alpha1.PhaseLost
	case podstate.Alive(o.active) && (slices.Contains(reasonsOfGuest, reason) || reason == v1alpha1.ReasonStorageNotRevoked):
		return v1alpha1.PhaseRunning
	case o.vm.Status.ActivePodUID != "" && !podstate.Alive(o.active) && !unprepared:
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

// Reasons of the condition RestartNeeded.
const (
	reasonSpecChanged = "SpecChanged"
	reasonCannotGrow  = "VolumeCannotGrow"
)

// restartNeeded sets or removes the condition RestartNeeded, which lists the changes that take effect at the next
// start.
func restartNeeded(o observation, conditions *[]metav1.Condition, set func(metav1.Condition)) {
	if !podstate.Alive(o.active) || !podspec.Outdated(o.vm, o.active) {
		meta.RemoveStatusCondition(conditions, v1alpha1.ConditionRestartNeeded)
		return
	}
	if o.report == nil {
		return // keep the condition that the last process set
	}
	changes, err := podspec.PendingChanges(o.vm, o.active, o.report, o.settings)
	if err != nil || len(changes) == 0 {
		meta.RemoveStatusCondition(conditions, v1alpha1.ConditionRestartNeeded)
		return
	}
	condition := metav1.Condition{
		Type: v1alpha1.ConditionRestartNeeded, Status: metav1.ConditionTrue, Reason: reasonSpecChanged,
		Message: "Restart the virtual machine to apply these changes: " + strings.Join(changes, ", ") + ".",
	}
	if wrong := invalid(o.vm, o.settings); wrong != nil {
		condition.Reason, condition.Message = wrong.Reason, "The virtual machine cannot restart with its current spec: "+wrong.Message
	} else if o.noGrowth != nil {
		condition.Reason, condition.Message = o.noGrowth.Reason, condition.Message+" "+o.noGrowth.Message
	}
	condition.Message = podstate.Truncate(condition.Message)
	set(condition)
}

// reasonNoResponse is the reason of the condition GuestsUnreachable.
const reasonNoResponse = "NoResponse"

// guestsUnreachable sets or removes the condition GuestsUnreachable.
func guestsUnreachable(o observation, conditions *[]metav1.Condition, set func(metav1.Condition)) {
	if o.silence == nil || !podstate.Alive(o.active) {
		meta.RemoveStatusCondition(conditions, v1alpha1.ConditionGuestsUnreachable)
		return
	}
	const shown = 3
	var others []string
	for _, vm := range slices.Sorted(maps.Keys(o.silence.To)) {
		others = append(others, fmt.Sprintf("%s (virtual machine %s)", o.silence.To[vm], vm))
	}
	if len(others) > shown {
		others = append(others[:shown], fmt.Sprintf("%d more", len(others)-shown))
	}
	set(metav1.Condition{
		Type: v1alpha1.ConditionGuestsUnreachable, Status: metav1.ConditionTrue, Reason: reasonNoResponse,
		Message: podstate.Truncate(fmt.Sprintf("No response over UDP from %s to %s; check that network policies allow this port between the Pods of hypervisors, and that the hosts are running.",
			o.silence.From, strings.Join(others, ", "))),
	})
}
