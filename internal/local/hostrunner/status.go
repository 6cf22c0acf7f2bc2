package hostrunner

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/internal/local/process"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// Reasons of a Pod that Failed for another cause than its process's own.
const (
	// ReasonUnsupported: the Pod wants something that a host does not do.
	ReasonUnsupported = "Unsupported"
	// ReasonProcessLost: the process is gone, and nobody saw how it ended.
	ReasonProcessLost = "ProcessLost"
	// ReasonHostStopped: the host runner was stopped, and the process with it.
	ReasonHostStopped = "HostStopped"
)

// maxMessage is how much of a termination message is kept, in bytes; the kubelet's limit.
const maxMessage = 4096

// facts is what a worker knows of its Pod beside the API's view.
type facts struct {
	now     time.Time
	began   time.Time // when the process was started; zero if it was not
	waiting *corev1.ContainerStateWaiting
	end     *ending // nil while the Pod has not ended
}

// ending is how a Pod ended.
type ending struct {
	phase           corev1.PodPhase
	reason, message string
	container       *corev1.ContainerStateTerminated // nil if it never ran
}

// terminal reports whether the phase is one that a Pod never leaves.
func terminal(phase corev1.PodPhase) bool {
	return phase == corev1.PodSucceeded || phase == corev1.PodFailed
}

// statusOf returns the status that the Pod shall have.
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

// setCondition sets a condition; its time moves only with its status. A reason is for
// those that are False.
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

// conclude returns how the process ended: from its exit status or, if that is unknown,
// from its termination message.
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

// guessCode is the exit code that goes with a termination message. It reports whether
// nothing is known at all.
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

// vanished is the end of a Pod that ran according to the API, and of which nothing is left.
func vanished(pod *corev1.Pod, now time.Time) *ending {
	began := now
	for _, status := range pod.Status.ContainerStatuses {
		if running := status.State.Running; running != nil {
			began = running.StartedAt.Time
		}
	}
	return conclude(process.Exit{Time: now}, began, false, "")
}

// readMessage returns the container's termination message, "" if there is none.
func readMessage(f podFolder) string {
	file, err := os.Open(filepath.Join(f.root(), vmpb.TerminationMessagePath))
	if err != nil {
		return ""
	}
	defer file.Close()
	content, _ := io.ReadAll(io.LimitReader(file, maxMessage))
	return strings.ToValidUTF8(string(content), "?")
}
