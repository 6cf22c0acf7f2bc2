package conditions

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podstate"
)

// EventFor returns the type and text of the event for a condition Ready; no text, no event.
func EventFor(vm *v1alpha1.VirtualMachine, ready *metav1.Condition, pod *corev1.Pod) (kind, text string) {
	switch {
	case ready.Reason == ReasonRunning:
		return corev1.EventTypeNormal, "Running on " + vm.Status.NodeName
	case pod != nil && podstate.Finished(pod):
		kind = corev1.EventTypeWarning
		if podstate.EndOf(pod).Intended() {
			kind = corev1.EventTypeNormal
		}
		return kind, fmt.Sprintf("The hypervisor in pod %s ended: %s", pod.Name, ready.Message)
	case slices.Contains(warnings, ready.Reason) || pod == nil && !transient(ready.Reason):
		return corev1.EventTypeWarning, ready.Message
	}
	return "", ""
}

// warnings are the reasons of a hypervisor that is alive about which users are warned.
var warnings = []string{v1alpha1.ReasonUnschedulable, v1alpha1.ReasonImagePullFailed, ReasonLost, v1alpha1.ReasonNoSpace, v1alpha1.ReasonStorageFailed}

// transient reports whether a reason is normal for a VM without a Pod.
func transient(reason string) bool {
	return reason == ReasonCreating || reason == ReasonTerminating || reason == ReasonVolumePending || reason == v1alpha1.ReasonDiskServerStarting
}
