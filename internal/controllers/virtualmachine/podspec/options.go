package podspec

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// Options are what the operator of a cluster wants of the Pods of hypervisors. They hold for those that are
// created from then on. The zero value takes nothing from a Pod of a host without a kubelet.
type Options struct {
	// User is the user and the group of the process, and the group of its volumes; its root file system is
	// read-only then. 0: the user of the image, which may be root, and a writable root file system.
	User int64
	// Groups are other groups of the process, such as that of the device of KVM.
	Groups []int64
	// KVMResource is the resource of a device plugin that brings the device of KVM. Empty: none.
	KVMResource corev1.ResourceName
	// KVMDevice is the path of the device of KVM on hosts without such a plugin. A kubelet gives no device
	// to a container that is not privileged, so it is. Empty: none.
	KVMDevice string
	// PriorityClass of the Pods. Empty: the default of the cluster.
	PriorityClass string
	// PullSecrets are the Secrets, in the namespaces of the VMs, for the image of hypervisors.
	PullSecrets []string
}

// apply changes a Pod as the operator wants it.
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
	// kvmPath is where QEMU looks for the device.
	kvmPath = "/dev/kvm"
)

// confine has the process run as the user, so that the Pod fits Pod Security "restricted".
func (o Options) confine(pod *corev1.Pod) {
	of, container := securityOf(pod), &pod.Spec.Containers[0]
	of.RunAsNonRoot, of.RunAsUser, of.RunAsGroup, of.FSGroup = ptr.To(true), ptr.To(o.User), ptr.To(o.User), ptr.To(o.User)
	// Else a kubelet goes through all files of a volume at each start.
	of.FSGroupChangePolicy = ptr.To(corev1.FSGroupChangeOnRootMismatch)
	container.SecurityContext.ReadOnlyRootFilesystem = ptr.To(true)
	// QEMU and qemu-img may write temporary files.
	container.Env = append(container.Env, corev1.EnvVar{Name: "TMPDIR", Value: vmpb.DirRun})
}

func securityOf(pod *corev1.Pod) *corev1.PodSecurityContext {
	if pod.Spec.SecurityContext == nil {
		pod.Spec.SecurityContext = &corev1.PodSecurityContext{}
	}
	return pod.Spec.SecurityContext
}
