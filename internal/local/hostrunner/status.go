package hostrunner

import (
	"encoding/json"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/internal/local/process"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// Reasons of Failed Pods whose process did not fail itself.
const (
	// ReasonUnsupported means that a host does not support the Pod.
	ReasonUnsupported = "Unsupported"
	// ReasonProcessLost means that the process has exited, and its exit status is unknown.
	ReasonProcessLost = "ProcessLost"
	// ReasonHostStopped means that the host runner was stopped, and the process with it.
	ReasonHostStopped = "HostStopped"
)

// facts is what a worker knows about its Pod in addition to the object.
type facts struct {
	now     time.Time
	began   time.Time // when the process was started, or zero
	waiting *corev1.ContainerStateWaiting
	end     *ending // nil while the Pod is running
}

// ending is the result of a Pod.
type ending struct {
	phase           corev1.PodPhase
	reason, message string
	container       *corev1.ContainerStateTerminated // nil if the container never ran
}

// terminal reports whether a phase is final.
func terminal(phase corev1.PodPhase) bool {
	return phase == corev1.PodSucceeded || phase == corev1.PodFailed
}

// statusOf returns the desired status of the Pod.
func statusOf(pod *corev1.Pod, f facts) corev1.PodStatus {
	status := pod.Status.DeepCopy()
	if terminal(status.Phase) {
		return *status
	}
	if status.StartTime == nil {
		status.StartTime = &metav1.Time{Time: f.now}
	}
	status.HostIP, status.HostIPs = podAddress, []corev1.HostIP{{IP: podAddress}}
	running := !f.began.IsZero() && f.end == nil
	switch {
	case f.end != nil:
		status.Phase, status.Reason, status.Message = f.end.phase, f.end.reason, f.end.message
	case running:
		status.Phase = corev1.PodRunning
	default:
		status.Phase = corev1.PodPending
	}
	if running {
		status.PodIP, status.PodIPs = podAddress, []corev1.PodIP{{IP: podAddress}}
	}
	setCondition(status, f, corev1.PodInitialized, f.end == nil || f.end.container != nil, "")
	setCondition(status, f, corev1.ContainersReady, running, unreadyReason(f))
	setCondition(status, f, corev1.PodReady, running, unreadyReason(f))
	if f.end == nil || f.end.container != nil {
		status.ContainerStatuses = []corev1.ContainerStatus{containerStatus(pod, f, running)}
	}
	return *status
}

func unreadyReason(f facts) string {
	switch {
	case f.end == nil:
		return "ContainersNotReady"
	case f.end.phase == corev1.PodSucceeded:
		return "PodCompleted"
	default:
		return "PodFailed"
	}
}

// setCondition sets a condition; its time changes only with its status. The reason is used for False.
func setCondition(status *corev1.PodStatus, f facts, kind corev1.PodConditionType, is bool, reason string) {
	condition := corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(f.now)}
	if !is {
		condition.Status, condition.Reason = corev1.ConditionFalse, reason
	}
	at := slices.IndexFunc(status.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind })
	if at < 0 {
		status.Conditions = append(status.Conditions, condition)
		return
	}
	if status.Conditions[at].Status == condition.Status {
		condition.LastTransitionTime = status.Conditions[at].LastTransitionTime
	}
	status.Conditions[at] = condition
}

func containerStatus(pod *corev1.Pod, f facts, running bool) corev1.ContainerStatus {
	container := &pod.Spec.Containers[0]
	status := corev1.ContainerStatus{
		Name: container.Name, Image: container.Image, Ready: running, Started: ptr.To(running),
	}
	if !f.began.IsZero() {
		status.ContainerID = "millwright://" + string(pod.UID)
	}
	switch {
	case f.end != nil:
		terminated := *f.end.container
		terminated.ContainerID = status.ContainerID
		status.State.Terminated = &terminated
	case running:
		status.State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(f.began)}
	case f.waiting != nil:
		status.State.Waiting = f.waiting
	default:
		status.State.Waiting = &corev1.ContainerStateWaiting{Reason: waitingCreating}
	}
	return status
}

// conclude returns the result of the process: from its exit status or, if that is unknown, from its termination
// message.
func conclude(exit process.Exit, began time.Time, killed bool, message string) *ending {
	end := &ending{container: &corev1.ContainerStateTerminated{
		ExitCode: int32(exit.Code), Signal: int32(exit.Signal), Message: message,
		StartedAt: metav1.NewTime(began), FinishedAt: metav1.NewTime(exit.Time),
	}}
	if !exit.Known {
		var lost bool
		end.container.ExitCode, lost = guessCode(message, killed)
		if lost {
			end.reason = ReasonProcessLost
			end.message = "the host runner was restarted and the process is gone"
		}
	}
	end.phase, end.container.Reason = corev1.PodSucceeded, "Completed"
	if end.container.ExitCode != 0 {
		end.phase, end.container.Reason = corev1.PodFailed, "Error"
	}
	return end
}

// guessCode returns the exit code for a termination message. lost is set if nothing is known.
func guessCode(message string, killed bool) (code int32, lost bool) {
	const sigkill, unknown = 128 + 9, 255
	var last vmpb.Termination
	switch {
	case json.Unmarshal([]byte(message), &last) != nil || last.Reason == "":
		if killed {
			return sigkill, false
		}
		return unknown, true
	case slices.Contains([]string{vmpb.EndGuestShutdown, vmpb.EndTerminated, vmpb.EndStopped}, last.Reason):
		return 0, false
	default:
		return 1, false
	}
}

// vanished returns the result of a Pod that was running according to its status, but has no process and no
// directory.
func vanished(pod *corev1.Pod, now time.Time) *ending {
	began := now
	for _, status := range pod.Status.ContainerStatuses {
		if running := status.State.Running; running != nil {
			began = running.StartedAt.Time
		}
	}
	return conclude(process.Exit{Time: now}, began, false, "")
}

// statusPatch returns the patch from the status of the Pod to another one, or nil if they are equal. The patch
// conflicts with a later Pod of the same name.
func statusPatch(pod *corev1.Pod, status corev1.PodStatus) ([]byte, error) {
	from := client.StrategicMergeFrom(&corev1.Pod{Status: pod.Status})
	patch, err := from.Data(&corev1.Pod{Status: status})
	if err != nil || string(patch) == "{}" {
		return nil, err
	}
	// Since only one side has the UID, it becomes part of the patch.
	return from.Data(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: pod.UID}, Status: status})
}
