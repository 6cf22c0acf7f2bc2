// Package podstate reads the state of hypervisor Pods.
package podstate

import (
	"cmp"
	"encoding/json"
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// Owner returns the UID of the VirtualMachine that controls an object; empty if there is none.
func Owner(object metav1.Object) types.UID {
	owner := metav1.GetControllerOfNoCopy(object)
	if owner == nil || owner.Kind != v1alpha1.VirtualMachineKind {
		return ""
	}
	if group, err := schema.ParseGroupVersion(owner.APIVersion); err != nil || group.Group != v1alpha1.SchemeGroupVersion.Group {
		return ""
	}
	return owner.UID
}

// Owns reports whether a VM controls an object. It compares UIDs, so another VM of the same name does not.
func Owns(vm *v1alpha1.VirtualMachine, object client.Object) bool {
	return vm.UID != "" && Owner(object) == vm.UID
}

// Finished reports whether the hypervisor in a Pod has terminated for good. Other containers, which a webhook may
// have added, may still be running.
func Finished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed || terminated(pod)
}

// terminated reports whether the hypervisor's container has terminated and will not be restarted.
func terminated(pod *corev1.Pod) bool {
	if pod.Spec.RestartPolicy != corev1.RestartPolicyNever {
		return false
	}
	for i := range pod.Spec.Containers {
		container := &pod.Spec.Containers[i]
		// A restart rule of any container may restart all of them.
		if len(container.RestartPolicyRules) > 0 || isOurs(container.Name) && container.RestartPolicy != nil && *container.RestartPolicy != corev1.ContainerRestartPolicyNever {
			return false
		}
	}
	return slices.ContainsFunc(pod.Status.ContainerStatuses, func(of corev1.ContainerStatus) bool {
		return isOurs(of.Name) && of.State.Terminated != nil
	})
}

// isOurs reports whether a container is a hypervisor or a disk server.
func isOurs(name string) bool {
	return name == podspec.ContainerName || name == podspec.ServerContainerName
}

// Alive reports whether the hypervisor in a Pod is running, may be running, or may still start. A nil Pod is not
// alive.
func Alive(pod *corev1.Pod) bool { return pod != nil && !Finished(pod) }

// OldestFirst returns the Pods that are alive, sorted by age, oldest first.
func OldestFirst(pods []*corev1.Pod) []*corev1.Pod {
	found := slices.DeleteFunc(slices.Clone(pods), Finished)
	slices.SortFunc(found, func(a, b *corev1.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return found
}

// Unschedulable reports whether no host has capacity for a Pod, with the scheduler's message.
func Unschedulable(pod *corev1.Pod) (message string, unschedulable bool) {
	condition := condition(pod, corev1.PodScheduled)
	if pod.Spec.NodeName != "" || condition == nil || condition.Reason != corev1.PodReasonUnschedulable {
		return "", false
	}
	return Truncate(condition.Message), true
}

// HostUnreachable reports whether the host of a Pod has stopped reporting. In that case the node controller has set
// the Pod's condition Ready to False, but the container states are still those that were reported last.
func HostUnreachable(pod *corev1.Pod) bool {
	if pod.Status.Phase != corev1.PodRunning || len(pod.Status.ContainerStatuses) == 0 {
		return false
	}
	for _, container := range pod.Status.ContainerStatuses {
		if !container.Ready {
			return false
		}
	}
	ready := condition(pod, corev1.PodReady)
	return ready != nil && ready.Status == corev1.ConditionFalse
}

// imageReasons are the waiting reasons of a container whose image cannot be pulled. The kubelet alternates between
// them.
var imageReasons = []string{"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError", "RegistryUnavailable"}

// Waiting returns why a container of a Pod is not starting; empty if no reason is known.
func Waiting(pod *corev1.Pod) (reason, message string) {
	for _, container := range pod.Status.ContainerStatuses {
		waiting := container.State.Waiting
		if waiting == nil || waiting.Message == "" || !conditionReason.MatchString(waiting.Reason) {
			continue
		}
		if slices.Contains(imageReasons, waiting.Reason) {
			return v1alpha1.ReasonImagePullFailed, Truncate(waiting.Message)
		}
		return waiting.Reason, Truncate(waiting.Message)
	}
	return "", ""
}

// CannotStart reports whether a scheduled Pod has never started a container, for a reason that the kubelet reports.
func CannotStart(pod *corev1.Pod) bool {
	reason, _ := Waiting(pod)
	return reason != "" && pod.Status.Phase == corev1.PodPending && !slices.ContainsFunc(pod.Status.ContainerStatuses, func(container corev1.ContainerStatus) bool {
		return container.State.Waiting == nil || container.RestartCount > 0 || container.LastTerminationState != corev1.ContainerState{}
	})
}

func condition(pod *corev1.Pod, of corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == of {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

// End describes why a hypervisor terminated.
type End struct {
	// Reason is the reason in vmpb.Termination, or that of the Pod or its container. It is valid in a condition.
	Reason string
	// Message is for users.
	Message string
}

// Permanent reports whether another hypervisor with the same spec would fail in the same way.
func (e End) Permanent() bool {
	return slices.Contains([]string{vmpb.EndInvalidSpec, vmpb.EndImageRejected, vmpb.EndDiskLost}, e.Reason)
}

// Intended reports whether the guest, a user or the controller requested the termination.
func (e End) Intended() bool {
	return slices.Contains([]string{vmpb.EndGuestShutdown, vmpb.EndTerminated, vmpb.EndStopped}, e.Reason)
}

// conditionReason is the pattern to which the API server restricts the reasons of conditions.
var conditionReason = regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$`)

const (
	// reasonOutOfMemory is the kubelet's reason for a container that the kernel killed because it was out of memory.
	reasonOutOfMemory = "OOMKilled"
	maxReason         = 128
	// maxMessage limits the length of a hypervisor's message, in bytes.
	maxMessage = 1024
)

// EndOf returns why the hypervisor in a Pod terminated. It uses the hypervisor's termination message or, if there is
// none, the status of the Pod.
func EndOf(pod *corev1.Pod) End {
	end := End{Reason: pod.Status.Reason, Message: pod.Status.Message}
	for _, container := range pod.Status.ContainerStatuses {
		terminated := container.State.Terminated
		if !isOurs(container.Name) || terminated == nil {
			continue
		}
		var own vmpb.Termination
		if err := json.Unmarshal([]byte(terminated.Message), &own); err == nil && own.Reason != "" {
			end = End{Reason: own.Reason, Message: own.Message}
		} else if end.Reason == "" {
			end = End{Reason: terminated.Reason, Message: terminated.Message}
		}
	}
	if len(end.Reason) > maxReason || !conditionReason.MatchString(end.Reason) {
		end.Reason = vmpb.EndInternal
	}
	end.Message = Truncate(end.Message)
	if end.Message == "" {
		end.Message = defaultMessage(end.Reason)
	}
	return end
}

// defaultMessage returns a message for a hypervisor that terminated without one.
func defaultMessage(reason string) string {
	if reason == reasonOutOfMemory {
		return "The kernel killed the hypervisor because it exceeded spec.resources.limits.memory or the host ran out of memory."
	}
	return "The hypervisor terminated without a message."
}

// Truncate shortens a text from a hypervisor or a guest for a condition. See messages.Shorten. The result does not
// differ from what the API server stores, since the condition would otherwise be written in every pass.
func Truncate(message string) string { return messages.Shorten(message, maxMessage) }
