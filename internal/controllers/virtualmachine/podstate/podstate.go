// Package podstate reads the state of hypervisor Pods.
package podstate

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// Owner returns the UID of the VirtualMachine that controls an object; empty if none does.
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

// Owns reports whether a VM controls an object. Another VM of the same name does not.
func Owns(vm *v1alpha1.VirtualMachine, object client.Object) bool {
	return vm.UID != "" && Owner(object) == vm.UID
}

// Finished reports whether all processes of a Pod have ended. They are not started again.
func Finished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// Alive reports whether a process of a Pod runs, may run, or may still start. A nil Pod
// is not alive.
func Alive(pod *corev1.Pod) bool { return pod != nil && !Finished(pod) }

// OldestFirst returns the Pods that are alive, the oldest first.
func OldestFirst(pods []*corev1.Pod) []*corev1.Pod {
	var found []*corev1.Pod
	for _, pod := range pods {
		if Alive(pod) {
			found = append(found, pod)
		}
	}
	slices.SortFunc(found, func(a, b *corev1.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return found
}

// Unschedulable reports whether no host has room for a Pod, and the scheduler's message.
func Unschedulable(pod *corev1.Pod) (message string, unschedulable bool) {
	condition := condition(pod, corev1.PodScheduled)
	if pod.Spec.NodeName != "" || condition == nil || condition.Reason != corev1.PodReasonUnschedulable {
		return "", false
	}
	return condition.Message, true
}

// HostUnreachable reports whether the host of a Pod has stopped reporting. The node
// controller then sets the Pod's condition Ready to false, and the containers' states
// stay as they were.
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

// Waiting returns why a container of a Pod does not start; empty if nothing is known.
func Waiting(pod *corev1.Pod) (reason, message string) {
	for _, container := range pod.Status.ContainerStatuses {
		if waiting := container.State.Waiting; waiting != nil && waiting.Message != "" && conditionReason.MatchString(waiting.Reason) {
			return waiting.Reason, waiting.Message
		}
	}
	return "", ""
}

func condition(pod *corev1.Pod, of corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == of {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}
