package podspec

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// hostSelector returns the labels that a host must have to run a VM.
func hostSelector(vm *v1alpha1.VirtualMachine) map[string]string {
	selector := map[string]string{}
	maps.Copy(selector, vm.Spec.HostSelector)
	selector[v1alpha1.HostKey] = ""
	return selector
}

// addAntiAffinity adds the Pod to the anti-affinity group of its VM, if it has one, and keeps it away from the hosts
// of the group's other Pods.
func addAntiAffinity(vm *v1alpha1.VirtualMachine, pod *corev1.Pod) {
	apart := vm.Spec.AntiAffinity
	if apart == nil {
		return
	}
	pod.Labels[v1alpha1.LabelAntiAffinityGroup] = apart.Group
	others := corev1.PodAffinityTerm{
		TopologyKey: corev1.LabelHostname,
		LabelSelector: &metav1.LabelSelector{
			MatchLabels: map[string]string{v1alpha1.LabelAntiAffinityGroup: apart.Group},
			// Other rules apply to Pods of the same VM.
			MatchExpressions: []metav1.LabelSelectorRequirement{{Key: v1alpha1.LabelVM, Operator: metav1.LabelSelectorOpNotIn, Values: []string{vm.Name}}},
		},
	}
	if pod.Spec.Affinity == nil {
		pod.Spec.Affinity = &corev1.Affinity{}
	}
	if apart.Mode == v1alpha1.AntiAffinityRequired {
		pod.Spec.Affinity.PodAntiAffinity = &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{others}}
		return
	}
	pod.Spec.Affinity.PodAntiAffinity = &corev1.PodAntiAffinity{
		PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{Weight: 100, PodAffinityTerm: others}},
	}
}

// KeepApart keeps a Pod away from hosts on which the Pod of another hypervisor of its VM still exists.
func KeepApart(pod *corev1.Pod) {
	others := corev1.PodAffinityTerm{
		TopologyKey: corev1.LabelHostname,
		LabelSelector: &metav1.LabelSelector{
			MatchLabels:      map[string]string{v1alpha1.LabelVM: pod.Labels[v1alpha1.LabelVM]},
			MatchExpressions: []metav1.LabelSelectorRequirement{{Key: v1alpha1.LabelDiskServer, Operator: metav1.LabelSelectorOpDoesNotExist}},
		},
	}
	if pod.Spec.Affinity == nil {
		pod.Spec.Affinity = &corev1.Affinity{}
	}
	if pod.Spec.Affinity.PodAntiAffinity == nil {
		pod.Spec.Affinity.PodAntiAffinity = &corev1.PodAntiAffinity{}
	}
	required := &pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	*required = append(*required, others)
}

// InvalidPlacement returns what is wrong with the placement in a spec, or "" if it is valid.
func InvalidPlacement(spec *v1alpha1.VirtualMachineSpec) string {
	for _, key := range slices.Sorted(maps.Keys(spec.HostSelector)) {
		if wrong := validation.IsQualifiedName(key); len(wrong) > 0 {
			return fmt.Sprintf("spec.hostSelector: %q is not a valid label key: %s", key, strings.Join(wrong, "; "))
		}
		if wrong := validation.IsValidLabelValue(spec.HostSelector[key]); len(wrong) > 0 {
			return fmt.Sprintf("spec.hostSelector[%s]: %q is not a valid label value: %s", key, spec.HostSelector[key], strings.Join(wrong, "; "))
		}
	}
	return ""
}

// Changed reports whether the VM's next Pod would be created from another generation of the VM, or with another
// image.
func Changed(vm *v1alpha1.VirtualMachine, pod *corev1.Pod, s Settings) bool {
	container := Hypervisor(pod)
	return Outdated(vm, pod) || container != nil && container.Image != Image(vm, s)
}

// Hypervisor returns the hypervisor container of a Pod; nil if there is none. It need not be the first container,
// because a webhook may have added others.
func Hypervisor(pod *corev1.Pod) *corev1.Container { return containerOf(pod, ContainerName) }

func containerOf(pod *corev1.Pod, name string) *corev1.Container {
	for i := range pod.Spec.Containers {
		if container := &pod.Spec.Containers[i]; container.Name == name {
			return container
		}
	}
	return nil
}
