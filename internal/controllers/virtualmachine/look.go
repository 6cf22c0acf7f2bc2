package virtualmachine

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// Reasons of the condition Ready. While a VM waits after the end of a hypervisor, it is
// why that ended: a reason of vmpb.Termination, or of the Pod. See also problem.
const (
	reasonCreating    = "Creating"
	reasonScheduling  = "Scheduling"
	reasonPreparing   = "Preparing"
	reasonStarting    = "Starting"
	reasonRunning     = "Running"
	reasonPaused      = "Paused"
	reasonStopping    = "Stopping"
	reasonTerminating = "Terminating"
	reasonLost        = "HostUnreachable"
	reasonDeleted     = "PodDeleted"
)

// view is what a pass saw of a VM.
type view struct {
	// pod is the authoritative one; nil if there is none.
	pod *corev1.Pod
	// report is the last one of its hypervisor; nil if this process has none.
	report *vmpb.ReportStateRequest
	// answers reports whether its hypervisor has a run lease open.
	answers bool
	// held is why there is no Pod, if the user must do something.
	held *problem
	// failure is why the pass failed; nil if it did not.
	failure error
	// addresses are those that this pass assigned; nil leaves what was known.
	addresses []string
}

// outlook is what the status says of it.
type outlook struct {
	phase      v1alpha1.VirtualMachinePhase
	node       string
	addresses  []string
	conditions []metav1.Condition
	// unscheduled says that there is no Pod to be scheduled.
	unscheduled bool
}

// look turns what was seen into what people read.
func look(vm *v1alpha1.VirtualMachine, v view) outlook {
	found := outlook{addresses: vm.Status.Addresses, unscheduled: v.pod == nil}
	if v.addresses != nil {
		found.addresses = v.addresses
	}
	if v.pod != nil {
		found.node = v.pod.Spec.NodeName
		if text := v.pod.Annotations[v1alpha1.AnnotationAddresses]; text != "" {
			found.addresses = strings.Split(text, ",")
		}
		found.conditions = append(found.conditions, scheduled(v.pod))
	}
	ready := readiness(vm, v)
	ready.Type = v1alpha1.ConditionReady
	found.conditions = append(found.conditions, ready)
	found.phase = phase(vm, v, ready.Reason)
	return found
}

func phase(vm *v1alpha1.VirtualMachine, v view, reason string) v1alpha1.VirtualMachinePhase {
	neverRan := vm.Spec.InitialImage != nil && !vm.Status.ImagePrepared
	switch {
	case !vm.DeletionTimestamp.IsZero():
		return v1alpha1.PhaseTerminating
	case reason == reasonLost:
		return v1alpha1.PhaseLost
	case alive(v.pod) && slices.Contains([]string{reasonRunning, reasonPaused, reasonStopping}, reason):
		return v1alpha1.PhaseRunning
	case vm.Status.ActivePodUID != "" && !alive(v.pod) && !neverRan:
		return v1alpha1.PhaseStopped
	}
	return v1alpha1.PhaseCreating
}

func scheduled(pod *corev1.Pod) metav1.Condition {
	condition := metav1.Condition{Type: v1alpha1.ConditionScheduled, Status: metav1.ConditionFalse, Reason: reasonScheduling}
	if pod.Spec.NodeName != "" {
		condition.Status, condition.Reason = metav1.ConditionTrue, "Scheduled"
		return condition
	}
	if said := podCondition(pod, corev1.PodScheduled); said != nil && said.Reason == corev1.PodReasonUnschedulable {
		condition.Reason, condition.Message = v1alpha1.ReasonUnschedulable, said.Message
	}
	return condition
}

// readiness says whether the VM runs as its spec wants it, and if not, why not.
func readiness(vm *v1alpha1.VirtualMachine, v view) metav1.Condition {
	not := func(reason, message string) metav1.Condition {
		return metav1.Condition{Status: metav1.ConditionFalse, Reason: reason, Message: message}
	}
	switch {
	case !vm.DeletionTimestamp.IsZero():
		return not(reasonTerminating, "The virtual machine is being deleted.")
	case alive(v.pod):
		return livingReadiness(vm, v, not)
	case v.failure != nil:
		return not(reasonFailed, v.failure.Error())
	case v.held != nil:
		return not(v.held.reason, v.held.message)
	case v.pod != nil:
		end := endingOf(v.pod)
		return not(end.reason, end.message)
	case vm.Status.ActivePodUID != "":
		return not(reasonDeleted, fmt.Sprintf("Pod %s was deleted.", vm.Status.ActivePodName))
	}
	return not(reasonCreating, "The hypervisor's pod is being created.")
}

func livingReadiness(vm *v1alpha1.VirtualMachine, v view, not func(reason, message string) metav1.Condition) metav1.Condition {
	if v.pod.Spec.NodeName == "" {
		state := scheduled(v.pod)
		return not(state.Reason, state.Message)
	}
	if silent(v.pod) && !v.answers {
		return metav1.Condition{
			Status: metav1.ConditionUnknown, Reason: reasonLost,
			Message: fmt.Sprintf("Host %s does not answer; the virtual machine may be running.", v.pod.Spec.NodeName),
		}
	}
	if v.report != nil {
		return reported(vm, v.report, not)
	}
	// A new controller has heard nothing yet. What the last one wrote of this Pod stays:
	// it is replaced when the authority moves.
	if last := meta.FindStatusCondition(vm.Status.Conditions, v1alpha1.ConditionReady); last != nil && vm.Status.ActiveRunID != "" &&
		slices.Contains([]string{reasonPreparing, reasonStarting, reasonRunning, reasonPaused, reasonStopping}, last.Reason) {
		return metav1.Condition{Status: last.Status, Reason: last.Reason, Message: last.Message}
	}
	for _, container := range v.pod.Status.ContainerStatuses {
		if waiting := container.State.Waiting; waiting != nil && waiting.Message != "" && reasonForm.MatchString(waiting.Reason) {
			return not(waiting.Reason, waiting.Message)
		}
	}
	return not(reasonStarting, "The hypervisor starts.")
}

func reported(vm *v1alpha1.VirtualMachine, report *vmpb.ReportStateRequest, not func(reason, message string) metav1.Condition) metav1.Condition {
	message := bounded(report.GetMessage())
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
		return as(reasonPaused, pausing)
	case vmpb.ReportStateRequest_STATE_STOPPING:
		return as(reasonStopping, false)
	case vmpb.ReportStateRequest_STATE_PREPARING:
		if text := written(report.GetDoneBytes(), report.GetTotalBytes()); text != "" {
			message = text
		}
		return as(reasonPreparing, false)
	}
	return as(reasonStarting, false)
}

// written says how far the writing of the image is, in whole MiB.
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
