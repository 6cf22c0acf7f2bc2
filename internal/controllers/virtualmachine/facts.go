package virtualmachine

import (
	"cmp"
	"encoding/json"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// ownerOf is the UID of the VirtualMachine that controls an object; empty if none does.
func ownerOf(object metav1.Object) types.UID {
	owner := metav1.GetControllerOfNoCopy(object)
	if owner == nil || owner.Kind != v1alpha1.VirtualMachineKind {
		return ""
	}
	if group, err := schema.ParseGroupVersion(owner.APIVersion); err != nil || group.Group != v1alpha1.SchemeGroupVersion.Group {
		return ""
	}
	return owner.UID
}

// owns reports whether an object is of this very VM, and not of one that had its name.
func owns(vm *v1alpha1.VirtualMachine, object client.Object) bool {
	return vm.UID != "" && ownerOf(object) == vm.UID
}

// finished reports whether all processes of a Pod have ended, for ever: it does not start
// them again.
func finished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// alive reports whether a process of a Pod runs, may run, or may come to run.
func alive(pod *corev1.Pod) bool { return pod != nil && !finished(pod) }

// living are the Pods that are alive, the oldest first.
func living(pods []*corev1.Pod) []*corev1.Pod {
	var found []*corev1.Pod
	for _, pod := range pods {
		if alive(pod) {
			found = append(found, pod)
		}
	}
	slices.SortFunc(found, func(a, b *corev1.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return found
}

// claimOf is the name of the claim that a Pod has its disk on; empty if that is
// ephemeral.
func claimOf(pod *corev1.Pod) string {
	for _, volume := range pod.Spec.Volumes {
		if volume.Name == volumeDisk && volume.PersistentVolumeClaim != nil {
			return volume.PersistentVolumeClaim.ClaimName
		}
	}
	return ""
}

// overtaken reports whether a Pod was made from another spec than the VM's, and no host has
// room for it: the change may be what helps.
func overtaken(vm *v1alpha1.VirtualMachine, pod *corev1.Pod) bool {
	from, known := pod.Annotations[annotationGeneration]
	if !known || from == strconv.FormatInt(vm.Generation, 10) || !pod.DeletionTimestamp.IsZero() {
		return false
	}
	return pod.Spec.NodeName == "" && scheduled(pod).Reason == v1alpha1.ReasonUnschedulable
}

// silent reports whether the host of a Pod stopped to speak for it. The node controller
// says so by denying the Pod's readiness, while the containers stay as they were.
func silent(pod *corev1.Pod) bool {
	if pod.Status.Phase != corev1.PodRunning || len(pod.Status.ContainerStatuses) == 0 {
		return false
	}
	for _, container := range pod.Status.ContainerStatuses {
		if !container.Ready {
			return false
		}
	}
	ready := podCondition(pod, corev1.PodReady)
	return ready != nil && ready.Status == corev1.ConditionFalse
}

func podCondition(pod *corev1.Pod, of corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == of {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

// ending is why a hypervisor ended.
type ending struct{ reason, message string }

// permanent reports whether the same spec will end the same way.
func (e ending) permanent() bool {
	return e.reason == vmpb.EndInvalidSpec || e.reason == vmpb.EndImageRejected
}

// peaceful reports whether the end was meant.
func (e ending) peaceful() bool {
	return slices.Contains([]string{vmpb.EndGuestShutdown, vmpb.EndTerminated, vmpb.EndStopped}, e.reason)
}

// reasonForm is what the reason of a condition must look like.
var reasonForm = regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$`)

// longestMessage bounds what a hypervisor can have us write.
const longestMessage = 1024

// endingOf is why the hypervisor in a Pod ended: what it left itself, or else what the
// host says of the Pod.
func endingOf(pod *corev1.Pod) ending {
	found := ending{reason: pod.Status.Reason, message: pod.Status.Message}
	for _, container := range pod.Status.ContainerStatuses {
		ended := container.State.Terminated
		if container.Name != containerName || ended == nil {
			continue
		}
		var left vmpb.Termination
		if err := json.Unmarshal([]byte(ended.Message), &left); err == nil && left.Reason != "" {
			found = ending{reason: left.Reason, message: left.Message}
		} else if found.reason == "" {
			found = ending{reason: ended.Reason, message: ended.Message}
		}
	}
	if len(found.reason) > 128 || !reasonForm.MatchString(found.reason) {
		found.reason = vmpb.EndInternal
	}
	if found.message == "" {
		found.message = "The hypervisor ended without saying why."
	}
	found.message = bounded(found.message)
	return found
}

// bounded cuts a message. No half of a letter is left: it would not be stored as it is,
// and look like news for ever.
func bounded(message string) string {
	message = strings.ToValidUTF8(message, "\uFFFD")
	if len(message) > longestMessage {
		message = strings.ToValidUTF8(message[:longestMessage], "")
	}
	return message
}
