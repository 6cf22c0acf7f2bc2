package podspec

import (
	"cmp"
	"path"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

func volumesFor(vm *v1alpha1.VirtualMachine, of *vmpb.VMSpec, s Settings) ([]corev1.Volume, []corev1.VolumeMount) {
	disk := corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
	if claim := vm.Status.VolumeClaimName; claim != "" {
		disk = corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}
	}
	volumes := []corev1.Volume{
		{Name: volumeRun, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		{Name: volumeDisk, VolumeSource: disk},
	}
	mounts := []corev1.VolumeMount{
		{Name: volumeRun, MountPath: vmpb.DirRun},
		{Name: volumeDisk, MountPath: path.Dir(vmpb.RootDiskPath)},
	}
	more, folders := mountDataDisks(vm, of.GetDataDisks())
	volumes, mounts = append(volumes, more...), append(mounts, folders...)
	if volume, folder := identityFor(vm, s); folder != "" {
		volumes = append(volumes, volume)
		mounts = append(mounts, corev1.VolumeMount{Name: volume.Name, MountPath: folder, ReadOnly: true})
	}
	if from := vm.Spec.UserData; from != nil {
		volumes = append(volumes, corev1.Volume{Name: volumeUserData, VolumeSource: corev1.VolumeSource{
			Secret: &corev1.SecretVolumeSource{
				SecretName: from.SecretRef.Name,
				Items:      []corev1.KeyToPath{{Key: UserDataKey(from), Path: path.Base(vmpb.UserDataPath)}},
			},
		}})
		mounts = append(mounts, corev1.VolumeMount{Name: volumeUserData, MountPath: path.Dir(vmpb.UserDataPath), ReadOnly: true})
	}
	return volumes, mounts
}

// UserDataKey returns the key of the Secret with the user data. Default: userData.
func UserDataKey(from *v1alpha1.UserData) string {
	return cmp.Or(from.SecretRef.Key, "userData")
}

// ClaimName returns the name of the claim of a Pod's disk; empty if the disk is ephemeral.
func ClaimName(pod *corev1.Pod) string {
	for _, volume := range pod.Spec.Volumes {
		if volume.Name == volumeDisk && volume.PersistentVolumeClaim != nil {
			return volume.PersistentVolumeClaim.ClaimName
		}
	}
	return ""
}

// Outdated reports whether a Pod was created from another generation of its VM. A Pod without
// one counts as current.
func Outdated(vm *v1alpha1.VirtualMachine, pod *corev1.Pod) bool {
	from, known := pod.Annotations[annotationGeneration]
	return known && from != strconv.FormatInt(vm.Generation, 10)
}

func ownerReference(vm *v1alpha1.VirtualMachine) metav1.OwnerReference {
	return *metav1.NewControllerRef(vm, v1alpha1.SchemeGroupVersion.WithKind(v1alpha1.VirtualMachineKind))
}
