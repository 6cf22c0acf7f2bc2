package podspec

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// Options are the settings of the cluster's operator for hypervisor Pods. They apply to Pods that are created later.
// The zero value adds no restrictions to a Pod, which suits hosts without a kubelet.
type Options struct {
	// User is the user ID and group ID of the process, and the group ID of its volumes. If set, the root file system
	// is read-only. If 0, the user of the image is used, which may be root, and the root file system is writable.
	User int64
	// Groups are supplemental groups of the process, such as the group of the KVM device.
	Groups []int64
	// KVMResource is the resource of a device plugin that provides the KVM device. If empty, no plugin is used.
	KVMResource corev1.ResourceName
	// KVMDevice is the path of the KVM device on hosts without a device plugin. The container is then privileged,
	// because a kubelet gives other containers no access to devices: it has root access to its host, with an image
	// that Refusal permits. If empty, the device is not mounted.
	KVMDevice string
	// PriorityClass is the priority class of the Pods. If empty, the default of the cluster is used.
	PriorityClass string
	// PullSecrets are the names of image pull secrets in the namespaces of the VMs.
	PullSecrets []string
}

// apply applies the options to a Pod.
func (o Options) apply(pod *corev1.Pod) {
	container := &pod.Spec.Containers[0]
	if o.User != 0 {
		o.confine(pod)
	}
	if len(o.Groups) > 0 {
		securityOf(pod).SupplementalGroups = o.Groups
	}
	if o.KVMResource != "" {
		one := resource.MustParse("1")
		container.Resources = *container.Resources.DeepCopy()
		for _, list := range []*corev1.ResourceList{&container.Resources.Limits, &container.Resources.Requests} {
			if *list == nil {
				*list = corev1.ResourceList{}
			}
			(*list)[o.KVMResource] = one
		}
	}
	if o.KVMDevice != "" {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: volumeKVM, VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: o.KVMDevice, Type: ptr.To(corev1.HostPathCharDev)},
		}})
		container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: volumeKVM, MountPath: kvmPath})
		container.SecurityContext = &corev1.SecurityContext{Privileged: ptr.To(true), ReadOnlyRootFilesystem: container.SecurityContext.ReadOnlyRootFilesystem}
	}
	pod.Spec.PriorityClassName = o.PriorityClass
	for _, name := range o.PullSecrets {
		pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: name})
	}
}

const (
	volumeKVM = "kvm"
	// kvmPath is where QEMU expects the device.
	kvmPath = "/dev/kvm"
)

// confine restricts the process to the configured user, so that the Pod meets the Pod Security Standard "restricted".
func (o Options) confine(pod *corev1.Pod) {
	of, container := securityOf(pod), &pod.Spec.Containers[0]
	of.RunAsNonRoot, of.RunAsUser, of.RunAsGroup, of.FSGroup = ptr.To(true), ptr.To(o.User), ptr.To(o.User), ptr.To(o.User)
	// Without this policy, a kubelet checks all files of a volume at each start.
	of.FSGroupChangePolicy = ptr.To(corev1.FSGroupChangeOnRootMismatch)
	container.SecurityContext.ReadOnlyRootFilesystem = ptr.To(true)
	// QEMU and qemu-img may need a directory for temporary files.
	container.Env = append(container.Env, corev1.EnvVar{Name: "TMPDIR", Value: vmpb.DirRun})
}

func securityOf(pod *corev1.Pod) *corev1.PodSecurityContext {
	if pod.Spec.SecurityContext == nil {
		pod.Spec.SecurityContext = &corev1.PodSecurityContext{}
	}
	return pod.Spec.SecurityContext
}
